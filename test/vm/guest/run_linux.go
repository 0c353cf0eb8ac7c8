package guest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/internal/conformance/traffic"
)

// Job is a command to run in a guest.
type Job struct {
	Kernel  string            // one of Kernels
	Command []string          // runs as root; paths are the guest's
	Dir     string            // working directory; default: /src
	Env     []string          // KEY=value, in addition to PATH, HOME, TMPDIR and traffic.TimeoutScale
	Files   map[string]string // files and directories of the host, by absolute path in the guest
	Results string            // directory of the host for the contents of /results; empty means none
	Output  io.Writer         // receives the output of the command and of the kernel
	Timeout time.Duration     // of the whole guest; default: DefaultTimeout
}

const (
	// DefaultTimeout limits a guest without another timeout.
	DefaultTimeout = 10 * time.Minute

	// Src is the directory in the guest that stands for the repository.
	Src = "/src"

	memory     = 2048        // MiB
	processors = 2           // more gain nothing under emulation
	scale      = 5           // traffic.TimeoutScale in the guest
	tail       = 4096        // bytes of the console in an error
	killDelay  = time.Second // exec.Cmd.WaitDelay of QEMU
	stalls     = 3           // reports of its kernel after which a guest is given up: two and a half minutes
)

// ErrStalled is wrapped by the error for a guest in which a processor went round in circles. QEMU 7.2
// may execute an instruction that another processor has just replaced: seen once in a whole run.
var ErrStalled = errors.New("the guest's kernel has stalled")

// Run boots a guest, runs a command in it and returns the command's exit status. An error means
// that the command did not run to its end; it contains the end of the console output.
func (c *Cache) Run(ctx context.Context, j Job) (status int, err error) {
	image, err := c.image(j.Kernel)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(c.Dir, "run-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := j.pack(filepath.Join(image, "base.cpio"), filepath.Join(dir, "initrd")); err != nil {
		return 0, err
	}
	if j.Timeout == 0 {
		j.Timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, j.Timeout, fmt.Errorf("not finished within %v", j.Timeout))
	defer cancel()
	ctx, stalled := context.WithCancelCause(ctx)
	defer stalled(nil)
	console := &console{out: j.Output, stalled: func() { stalled(ErrStalled) }}
	var problem error
	// QEMU 7.2 may execute an instruction that another processor has just replaced, as kernels do
	// while they boot (an Oops by int3, about once in fifty boots).
	for boots := 0; boots < 3 && !console.started && ctx.Err() == nil; boots++ {
		problem = c.boot(ctx, filepath.Join(image, "vmlinuz"), dir, console)
	}
	status, err = readResults(filepath.Join(dir, "results.tar"), j.Results)
	if problem != nil || err != nil {
		return 0, fmt.Errorf("guest with kernel %s: %w\nthe end of its console:\n%s", j.Kernel, errors.Join(problem, err), console.tail)
	}
	return status, nil
}

// pack writes the initial file system: the image followed by the job.
func (j Job) pack(base, to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	in, err := os.Open(base)
	if err == nil {
		_, err = io.Copy(f, in)
		err = errors.Join(err, in.Close())
	}
	a := newArchive(f)
	for _, name := range slices.Sorted(maps.Keys(j.Files)) {
		a.tree(strings.TrimPrefix(path.Clean(name), "/"), j.Files[name])
	}
	a.file("job/run", 0o755, []byte(j.script()))
	return errors.Join(err, a.close(), f.Close())
}

// script returns the shell script that the guest runs.
func (j Job) script() string {
	dir := j.Dir
	if dir == "" {
		dir = Src
	}
	text := fmt.Sprintf("mkdir -p %s && cd %[1]s || exit 1\n", quote(dir))
	for _, kv := range append([]string{fmt.Sprint(traffic.TimeoutScale, "=", scale)}, j.Env...) {
		text += "export " + quote(kv) + "\n"
	}
	for _, word := range j.Command {
		text += quote(word) + " "
	}
	return text + "\n"
}

// quote quotes a text as one word of the shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// boot runs QEMU until the guest has ended. The guest has only two serial lines, because every
// device would slow the boot.
func (c *Cache) boot(ctx context.Context, vmlinuz, dir string, out io.Writer) error {
	r := root(filepath.Join(c.Dir, "tools"))
	lines := "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on nowatchdog rdinit=/init"
	cmd, err := r.command("qemu-system-x86_64", "qemu",
		"-L", filepath.Join(string(r), "usr/share/qemu"), "-L", filepath.Join(string(r), "usr/share/seabios"),
		"-M", "q35,sata=off,smbus=off,usb=off,vmport=off", "-accel", "tcg,thread=multi", "-cpu", "qemu64",
		"-smp", strconv.Itoa(processors), "-m", strconv.Itoa(memory), "-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", vmlinuz, "-initrd", filepath.Join(dir, "initrd"), "-append", lines,
		"-serial", "file:/dev/stdout", "-serial", "file:"+filepath.Join(dir, "results.tar"))
	if err != nil {
		return err
	}
	// QEMU searches for modules relative to its executable, which is the loader here.
	cmd.Env = append(os.Environ(), "QEMU_MODULE_DIR="+filepath.Join(string(r), "usr/lib/x86_64-linux-gnu/qemu"))
	var problems bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, &problems, killDelay
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); ctx.Err() != nil {
		return context.Cause(ctx)
	} else if err != nil {
		return fmt.Errorf("QEMU: %w: %s", err, bytes.TrimSpace(problems.Bytes()))
	}
	return nil
}

// console copies the output from the start of the guest's first process on, and keeps the end of
// everything.
type console struct {
	out     io.Writer
	started bool
	tail    []byte

	stalled func() // called when the kernel has stalled
	reports int
}

func (c *console) Write(b []byte) (n int, err error) {
	if c.reports += bytes.Count(b, []byte("self-detected stall on CPU")); c.reports >= stalls {
		c.stalled()
	}
	c.tail = append(c.tail, b...)
	if c.started {
		_, err = c.out.Write(b)
	} else if i := bytes.Index(c.tail, []byte("guest: Linux ")); i >= 0 { // printed by init.sh
		c.started = true
		_, err = c.out.Write(c.tail[i:])
	}
	c.tail = c.tail[max(0, len(c.tail)-tail):]
	return len(b), err
}

// readResults returns the exit status in the archive and extracts its files.
func readResults(from, to string) (int, error) {
	f, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	status := -1
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		switch {
		case err == io.EOF && status < 0:
			return 0, errors.New("the guest ended before the command")
		case err == io.EOF:
			return status, nil
		case err != nil:
			return 0, fmt.Errorf("read results: %w", err)
		case h.Name == "job/status":
			text, err := io.ReadAll(archive)
			if err == nil {
				status, err = strconv.Atoi(strings.TrimSpace(string(text)))
			}
			if err != nil {
				return 0, fmt.Errorf("read exit status: %w", err)
			}
		case to != "":
			if err := extract(archive, h, to); err != nil {
				return 0, fmt.Errorf("extract %s: %w", h.Name, err)
			}
		}
	}
}

// extract writes one file of /results.
func extract(content io.Reader, h *tar.Header, to string) error {
	name, ok := strings.CutPrefix(h.Name, "results/")
	if !ok || h.Typeflag != tar.TypeReg {
		return nil
	}
	if !filepath.IsLocal(name) {
		return fs.ErrInvalid
	}
	p := filepath.Join(to, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(p, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fs.FileMode(h.Mode).Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

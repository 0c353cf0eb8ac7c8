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

// Job is a command to be run in a guest.
type Job struct {
	Kernel  string            // one of Kernels
	Command []string          // as root; a path is one in the guest
	Dir     string            // where the command runs; /src if it is empty
	Env     []string          // KEY=value, beside PATH, HOME, TMPDIR and that of traffic.Scaled
	Files   map[string]string // files and folders of this machine, by absolute path in the guest
	Results string            // a folder of this machine that gets what the command leaves in /results; may be empty
	Output  io.Writer         // gets what the command prints, and what the kernel says meanwhile
	Timeout time.Duration     // of the guest as a whole; DefaultTimeout if it is 0
}

const (
	// DefaultTimeout is how long a guest may live.
	DefaultTimeout = 10 * time.Minute

	// Src is the folder in the guest that stands for the repository.
	Src = "/src"

	memory     = 2048        // MiB
	processors = 2           // more bring nothing where QEMU itself does the computing
	scale      = 5           // of the lab's time-outs
	tail       = 4096        // bytes of the console that an error shows
	lastGasp   = time.Second // for QEMU to end after it was told to
)

// Run boots a guest, runs a command in it and returns the command's exit status.
// An error means that the guest did not come to that, and has the end of what
// its console showed.
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
	ctx, cancel := context.WithTimeoutCause(ctx, j.Timeout, fmt.Errorf("it has not ended within %v", j.Timeout))
	defer cancel()
	console := &console{out: j.Output}
	var problem error
	// QEMU 7.2 may run an instruction that another processor has just replaced, as
	// kernels do while they boot (an Oops by int3, about once in fifty boots).
	for boots := 0; boots < 3 && !console.started && ctx.Err() == nil; boots++ {
		problem = c.boot(ctx, filepath.Join(image, "vmlinuz"), dir, console)
	}
	status, err = unpack(filepath.Join(dir, "results.tar"), j.Results)
	if problem != nil || err != nil {
		return 0, fmt.Errorf("guest with kernel %s: %w\nthe end of its console:\n%s", j.Kernel, errors.Join(problem, err), console.tail)
	}
	return status, nil
}

// pack writes the initial file system: the image, and the job behind it.
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

// script is what the guest's shell runs.
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

// quote makes one word of the shell's of a text.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// boot runs QEMU until the guest is gone. Without a disk, a network or any
// device but two serial lines there is little to wait for.
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
	// QEMU looks for its modules beside its program, which is the loader here.
	cmd.Env = append(os.Environ(), "QEMU_MODULE_DIR="+filepath.Join(string(r), "usr/lib/x86_64-linux-gnu/qemu"))
	var problems bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, &problems, lastGasp
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

// console passes on what is printed from the start of the guest's first process
// on, and remembers the end of everything.
type console struct {
	out     io.Writer
	started bool
	tail    []byte
}

func (c *console) Write(b []byte) (n int, err error) {
	c.tail = append(c.tail, b...)
	if c.started {
		_, err = c.out.Write(b)
	} else if i := bytes.Index(c.tail, []byte("guest: Linux ")); i >= 0 { // of init.sh
		c.started = true
		_, err = c.out.Write(c.tail[i:])
	}
	c.tail = c.tail[max(0, len(c.tail)-tail):]
	return len(b), err
}

// unpack reads what came back: the exit status, and files.
func unpack(from, to string) (int, error) {
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
			return 0, errors.New("it has ended before the command did")
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
			if err := keep(archive, h, to); err != nil {
				return 0, fmt.Errorf("keep %s: %w", h.Name, err)
			}
		}
	}
}

// keep writes one of the files in results.
func keep(content io.Reader, h *tar.Header, to string) error {
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

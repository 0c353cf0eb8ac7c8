package ipt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockWait is how long a restore waits for the xtables lock unless told otherwise.
	lockWait = 5 * time.Second
	// drainWait is how long the output of an ended program may take, should a
	// child of it hold on to the pipe.
	drainWait = time.Second
)

// oldest is the first release whose iptables-restore can wait for the lock.
var oldest = [3]int{1, 6, 2}

// Conn is the programs of one variant and family. They work on the network
// namespace of the calling thread.
type Conn struct {
	// LockWait bounds the wait for the xtables lock, in whole seconds. The nft
	// variant knows no lock.
	LockWait time.Duration

	family        Family
	variant       Variant
	save, restore string // paths
}

var _ Interface = (*Conn)(nil)

// Open finds the programs of a variant and family in the PATH, by their full
// name or, where a host has one variant only, by the short one. The error is an
// [ErrMissing] if there are none.
func Open(ctx context.Context, f Family, v Variant) (*Conn, error) {
	reason := fmt.Errorf("find programs %s-save and %[1]s-restore: %w", Name(f, v), ErrMissing)
	for _, name := range []string{Name(f, v), f.program()} {
		c := &Conn{LockWait: lockWait, family: f, variant: v}
		program, err := exec.LookPath(name)
		if err == nil {
			c.save, err = exec.LookPath(name + "-save")
		}
		if err == nil {
			c.restore, err = exec.LookPath(name + "-restore")
		}
		if err != nil {
			continue
		}
		version, err := run(ctx, nil, program, "--version")
		if err != nil {
			return nil, err
		}
		variant, number := parseVersion(string(version))
		switch {
		case variant != v:
		case older(number, oldest):
			reason = fmt.Errorf("use %s: version %q is too old, 1.6.2 is the oldest that works", program, bytes.TrimSpace(version))
		default:
			return c, nil
		}
	}
	return nil, reason
}

var versionPattern = regexp.MustCompile(`v(\d+)\.(\d+)\.(\d+)(?:\.\d+)?(?: \((\w+)\))?`)

// parseVersion reads "iptables v1.8.9 (nf_tables)". Releases before 1.8 name no
// variant and know the legacy one only.
func parseVersion(s string) (Variant, [3]int) {
	m := versionPattern.FindStringSubmatch(s)
	if m == nil {
		return 0, [3]int{}
	}
	var number [3]int
	for i := range number {
		number[i], _ = strconv.Atoi(m[i+1]) // digits only; one too large is new enough
	}
	switch m[4] {
	case "nf_tables":
		return NFT, number
	case "legacy", "":
		return Legacy, number
	default:
		return 0, number
	}
}

func older(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// Save runs iptables-save.
func (c *Conn) Save(ctx context.Context) ([]Table, error) {
	output, err := run(ctx, nil, c.save)
	if err != nil {
		return nil, err
	}
	tables, err := parse(output)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", filepath.Base(c.save), err)
	}
	return tables, nil
}

// Restore runs iptables-restore. Its input is a file that is complete before it
// starts, so that it comes to its end even if this process is killed.
func (c *Conn) Restore(ctx context.Context, input []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	file, err := memoryFile(input)
	if err != nil {
		return fmt.Errorf("hand over the input of %s: %w", filepath.Base(c.restore), err)
	}
	defer file.Close()
	wait := max(1, int(c.LockWait/time.Second))
	_, err = run(context.WithoutCancel(ctx), file, c.restore, "--noflush", "-w", strconv.Itoa(wait))
	var failed *runError
	if !errors.As(err, &failed) {
		return err
	}
	if strings.Contains(failed.said, "holding the xtables lock") {
		return fmt.Errorf("run %s: %w, for more than %d s", failed.command, ErrLocked, wait)
	}
	if n := refusedLine(failed.said); n > 0 {
		return &RestoreError{Line: n, Text: lineOf(input, n), Err: err}
	}
	return err
}

// memoryFile returns a file without a name that holds these bytes.
func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("iptables-restore", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "iptables-restore")
	if _, err = f.Write(content); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

var linePattern = regexp.MustCompile(`\bline:? (\d+)`)

// refusedLine finds the number of the refused line in what a program said; 0
// if it is not there.
func refusedLine(said string) int {
	m := linePattern.FindStringSubmatch(said)
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1]) // not a number we can use: zero
	return n
}

func lineOf(input []byte, number int) string {
	for line := range bytes.Lines(input) {
		if number--; number == 0 {
			return string(bytes.TrimSpace(line))
		}
	}
	return ""
}

// runError is a program that ended badly.
type runError struct {
	command string
	said    string
	err     error
}

func (e *runError) Error() string {
	if e.said == "" {
		return fmt.Sprintf("run %s: %v", e.command, e.err)
	}
	return fmt.Sprintf("run %s: %v: %s", e.command, e.err, e.said)
}

func (e *runError) Unwrap() error { return e.err }

// run runs a program to its end and returns its output. What it says on the
// way is part of the error, on one line. The program has a process group of its
// own: a signal to ours, such as Ctrl-C, is for us to act on.
func run(ctx context.Context, input io.Reader, path string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = drainWait
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdin = input
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		command := strings.Join(append([]string{filepath.Base(path)}, args...), " ")
		return nil, &runError{command, strings.Join(strings.Fields(said.String()), " "), err}
	}
	return out.Bytes(), nil
}

// LegacyTables returns the tables of the legacy variant that the calling
// thread's network namespace has in use. It needs no program and makes none.
func LegacyTables(f Family) ([]string, error) {
	names := map[Family]string{IPv4: "ip_tables_names", IPv6: "ip6_tables_names"}
	b, err := os.ReadFile("/proc/thread-self/net/" + names[f])
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the kernel has no such tables, or not yet
	}
	if err != nil {
		return nil, fmt.Errorf("list legacy tables: %w", err)
	}
	return strings.Fields(string(b)), nil
}

package testbed

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "sluice/internal/app" // so that cached test results depend on the daemon's sources
	"sluice/internal/conformance/subprocess"
	"sluice/internal/conformance/traffic"
	"sluice/test/programs"
	"sluice/test/vm/guest"
)

// Main is TestMain of every package that uses the testbed. It runs the tests, or what a test started
// the test program for.
func Main(m *testing.M) {
	if file := os.Getenv(filterFile); file != "" {
		fmt.Fprintln(os.Stderr, confine(file))
		os.Exit(1)
	}
	flag.Parse()
	if testing.Short() {
		fmt.Println("left out by -short: these tests need root, network namespaces and minutes")
		return
	}
	code := m.Run()
	dir, err := binaryDir()
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// binaryDir is where binaries are built. Main removes it.
var binaryDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "sluice-daemon-") })

// Binary returns the path of the daemon, which is built once, as make build does. A virtual machine
// has no compiler and brings the binary along.
func Binary(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(guest.DaemonVariable); path != "" {
		return path, nil
	}
	dir, err := binaryDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "sluice")
	return path, programs.Daemon.Put(context.Background(), path)
})

// FormerBinary returns the path of the daemon of the former version, which is built once, too. It
// skips the test if there is no history to build it from.
func FormerBinary(t *testing.T) string {
	t.Helper()
	path, err := formerBinary()
	if errors.Is(err, guest.ErrNoHistory) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var formerBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(guest.FormerVariable); path != "" {
		return path, nil
	}
	dir, err := binaryDir()
	if err != nil {
		return "", err
	}
	return guest.BuildFormer(dir)
})

// Daemon is a running daemon.
type Daemon struct {
	*subprocess.Process
	T *testing.T
}

// Start starts a daemon with the folder of manifests, in the node's namespace; change may change
// its command before. It is killed when the test ends.
func (b *Testbed) Start(change func(*exec.Cmd), args ...string) *Daemon {
	b.T.Helper()
	args = slices.Concat(b.settings(), []string{"-v", "2", "--status-socket", b.Socket}, args)
	p, err := subprocess.Start(exec.Command(Binary(b.T), args...), func(cmd *exec.Cmd) error {
		if change != nil {
			change(cmd)
		}
		return b.Lab.Node().Start(cmd)
	})
	if err != nil {
		b.T.Fatal(err)
	}
	d := &Daemon{p, b.T}
	b.T.Cleanup(func() {
		d.End(syscall.SIGKILL)
		if b.T.Failed() {
			b.T.Logf("the daemon's log:\n%s", d.Log())
		}
	})
	return d
}

// settings returns the flags that a daemon and sluice render must share.
func (b *Testbed) settings() []string {
	return append([]string{"--hostname-override", "test-node", "--cluster-cidr", "10.0.0.0/8,fd00:10::/64"}, b.Flags...)
}

// AwaitSync waits until all that the daemon knows is in force.
func (b *Testbed) AwaitSync() {
	b.T.Helper()
	if text, code := b.Sluice("status", "--wait="+traffic.Scaled(20*time.Second).String()); code != 0 {
		b.T.Fatalf("exit %d, %s", code, text)
	}
}

const firstSync = "First sync done"

// Synced returns when the daemon logged its first sync; zero means not yet.
func (d *Daemon) Synced() time.Time { return d.LoggedAt(firstSync) }

// AwaitFirstSync waits until the daemon has logged its first sync.
func (d *Daemon) AwaitFirstSync() {
	d.T.Helper()
	d.AwaitLog(firstSync)
}

// AwaitLog waits until the daemon has logged a text.
func (d *Daemon) AwaitLog(text string) {
	d.T.Helper()
	Eventually(d.T, fmt.Sprintf("%q in the daemon's log", text), func() bool { return strings.Contains(d.Log(), text) })
}

// End signals the daemon, waits for it and returns its exit code.
func (d *Daemon) End(sig syscall.Signal) int {
	d.T.Helper()
	_ = d.Cmd.Process.Signal(sig) // an error means that it has already ended
	return d.Wait()
}

// Wait waits until the daemon ends and returns its exit code.
func (d *Daemon) Wait() int {
	d.T.Helper()
	select {
	case <-d.Done:
		return d.Cmd.ProcessState.ExitCode()
	case <-time.After(20 * time.Second):
		d.T.Fatalf("the daemon does not exit; its log:\n%s", d.Log())
		return -1
	}
}

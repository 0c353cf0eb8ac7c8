package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// errNoHistory says that there is no former version.
var errNoHistory = errors.New("there is no history to take a former daemon from, as in a source archive or a virtual machine")

// formerBinary builds the daemon of the last release or, where there is none, of the last
// commit, once and next to today's.
var formerBinary = sync.OnceValues(func() (string, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", args...).Output()
		return strings.TrimSpace(string(out)), err
	}
	former, err := git("describe", "--tags", "--abbrev=0", "HEAD^")
	if err != nil {
		former, err = git("rev-parse", "--verify", "HEAD^")
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoHistory, err)
	}
	root, err := git("rev-parse", "--show-toplevel")
	path, err2 := binary()
	if err := errors.Join(err, err2); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "former-") // TestMain removes it with today's
	if err != nil {
		return "", err
	}
	cmd := exec.Command("bash", "-ec", `set -o pipefail; git -C "$2" archive "$3" | tar x -C "$1"; cd "$1"
		go build -trimpath -ldflags='-s -w' -o sluice ./cmd/sluice`, "build", dir, root, former)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the daemon of %s: %w\n%s", former, err, out)
	}
	return filepath.Join(dir, "sluice"), nil
})

// findFormer finds the daemon that an upgrade begins with.
func (w *web) findFormer() []*stream {
	w.t.Helper()
	path, err := formerBinary()
	if errors.Is(err, errNoHistory) {
		w.t.Skip(err)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.former = path
	return nil
}

// upgrade replaces the daemon by a former one and that by today's again.
func (w *web) upgrade() {
	for _, path := range []string{w.former, ""} {
		old := w.daemon
		if err := old.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			w.t.Fatal(err)
		}
		if w.mode != "userspace" { // which serves until the next one does
			w.ended(old)
		}
		w.daemon = w.start(func(c *exec.Cmd) {
			if path != "" {
				c.Path = path
			}
		})
		w.publish(nil)
		w.ended(old)
		w.hold()
	}
}

// ended waits for a daemon that was told to stop.
func (w *web) ended(old *process) {
	w.t.Helper()
	if code := old.wait(); code != 0 {
		w.t.Errorf("exit code %d after SIGTERM", code)
	}
}

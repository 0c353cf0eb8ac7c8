package daemon

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"sluice/test/vm/guest"
)

// formerBinary builds the daemon of the former version once, next to today's; a virtual
// machine brings it along.
var formerBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(guest.FormerVariable); path != "" {
		return path, nil
	}
	path, err := binary()
	if err != nil {
		return "", err
	}
	return guest.BuildFormer(filepath.Dir(path)) // TestMain removes it with today's
})

// findFormer finds the daemon that an upgrade begins with.
func (w *web) findFormer() []*stream {
	w.t.Helper()
	path, err := formerBinary()
	if errors.Is(err, guest.ErrNoHistory) {
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
		if err := old.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
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

package traffic

import (
	"os/exec"
	"syscall"

	"sluice/test/daemon/testbed"
)

// findFormer finds the daemon that an upgrade begins with.
func (w *web) findFormer() []*stream {
	w.T.Helper()
	w.former = testbed.FormerBinary(w.T)
	return nil
}

// upgrade replaces the daemon by a former one and that by today's again.
func (w *web) upgrade() {
	for _, path := range []string{w.former, ""} {
		old := w.daemon
		if err := old.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			w.T.Fatal(err)
		}
		if w.mode != "userspace" { // which serves until the next one does
			w.ended(old)
		}
		w.daemon = w.Start(func(c *exec.Cmd) {
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
func (w *web) ended(old *testbed.Daemon) {
	w.T.Helper()
	if code := old.Wait(); code != 0 {
		w.T.Errorf("exit code %d after SIGTERM", code)
	}
}

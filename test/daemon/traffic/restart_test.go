package traffic

import (
	"syscall"
	"testing"

	"sluice/internal/conformance/traffic"
	"sluice/test/daemon/testbed"
)

// TestStopLeavesTheRules stops the daemon with SIGTERM and with SIGKILL: new and existing
// connections continue, and the next daemon takes over without a gap.
func TestStopLeavesTheRules(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	d := bed.Start(nil)
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	open := bed.OpenEcho()
	if code := d.End(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	bed.WantAlive(open, "after SIGTERM")
	if !bed.Answers(testbed.ClusterIP, testbed.PodA)() {
		t.Error("the Service does not answer after SIGTERM")
	}
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB)) // while nobody looks
	d = bed.Start(nil)
	testbed.Eventually(t, "what changed meanwhile", bed.Answers(testbed.ClusterIP, testbed.PodB))
	d.End(syscall.SIGKILL)
	bed.WantAlive(open, "after SIGKILL")

	// No connection fails while a daemon starts on rules that are there.
	failed := make(chan int)
	stop := make(chan struct{})
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				failed <- n
				return
			default:
				if _, fate := bed.Ask(testbed.ClientIP, testbed.ClusterIP); fate != traffic.Answered {
					n++
				}
			}
		}
	}()
	d = bed.Start(nil)
	d.AwaitFirstSync()
	close(stop)
	if n := <-failed; n != 0 {
		t.Errorf("%d connections failed during a restart", n)
	}
	bed.WantAlive(open, "after the restart")
}

package foreign

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"sluice/test/daemon/testbed"
)

// TestHeldLock holds the xtables lock while endpoints change. The change is applied when the lock
// is released, and a stop waits for the lock no longer than a restore does.
func TestHeldLock(t *testing.T) {
	bed := testbed.New(t)
	bed.Run("iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	hold := func(how int) {
		t.Helper()
		if err := syscall.Flock(int(lock.Fd()), how); err != nil {
			t.Fatal(err)
		}
	}
	change := bed.WrapProgram("iptables-legacy-restore", `touch `+path+`.asked; exec $REAL "$@"`)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	d := bed.Start(func(cmd *exec.Cmd) {
		change(cmd)
		cmd.Env = append(cmd.Env, "XTABLES_LOCKFILE="+path)
	}, "--proxy-mode", "iptables")
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	asked := func() bool { return os.Remove(path+".asked") == nil }
	testbed.Eventually(t, "earlier restores", asked)
	hold(syscall.LOCK_EX)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
	testbed.Eventually(t, "a restore", asked)
	if !bed.Answers(testbed.ClusterIP, testbed.PodA)() {
		t.Error("the Service does not answer while the lock is held")
	}
	hold(syscall.LOCK_UN)
	testbed.Eventually(t, "the change", bed.Answers(testbed.ClusterIP, testbed.PodB))
	hold(syscall.LOCK_EX)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	testbed.Eventually(t, "a restore", asked)
	if code := d.End(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

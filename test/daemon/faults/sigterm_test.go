package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"sluice/test/daemon/testbed"
)

// TestStopLetsARestoreEnd sends SIGTERM to the daemon's process group while
// iptables-restore runs: what it was told is written to the end.
func TestStopLetsARestoreEnd(t *testing.T) {
	bed := testbed.New(t)
	dir := t.TempDir()
	gate, began := filepath.Join(dir, "gate"), filepath.Join(dir, "began")
	change := bed.WrapProgram("iptables-nft-restore",
		"if [ -e "+gate+" ]; then touch "+began+"; fi; while [ -e "+gate+" ]; do sleep 0.01; done; exec $REAL \"$@\"")
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	d := bed.Start(func(cmd *exec.Cmd) {
		change(cmd)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}, "--proxy-mode", "iptables")
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	if err := os.WriteFile(gate, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	bed.Write("second.yaml", testbed.Service("second", testbed.SecondIP, testbed.PodB))
	testbed.Eventually(t, "the restore", func() bool {
		_, err := os.Stat(began)
		return err == nil
	})
	if err := syscall.Kill(-d.Cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	if code := d.Wait(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if !bed.Answers(testbed.SecondIP, testbed.PodB)() {
		t.Error("the restore that was under way did not come to its end")
	}
}

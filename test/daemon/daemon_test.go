package daemon

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// TestFlushIsRepaired flushes all rules behind the daemon's back, in each mode
// and variant.
func TestFlushIsRepaired(t *testing.T) {
	for _, tt := range []struct{ name, mode, before, flush string }{
		{"nftables", "nftables", "true", "nft flush ruleset"},
		{"iptables-nft", "iptables", "true", "nft flush ruleset"},
		{"iptables-legacy", "iptables", "iptables-legacy -t nat -N KUBE-KUBELET-CANARY", "iptables-legacy -t nat -F"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bed := testbed.New(t)
			sh := func(command string) {
				t.Helper()
				if err := bed.Lab.Node().Do(exec.Command("sh", "-c", command).Run); err != nil {
					t.Fatalf("%s: %v", command, err)
				}
			}
			sh(tt.before)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			d := bed.Start(nil, "--proxy-mode", tt.mode)
			testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			for range 3 {
				bed.AwaitSync() // else it finds out by its own write
				sh(tt.flush)
				testbed.Eventually(t, "the repair", bed.Answers(testbed.ClusterIP, testbed.PodA))
			}
			if !strings.Contains(d.Log(), "Another process changed our rules") {
				t.Error("the log says nothing of the repair")
			}
		})
	}
}

// TestBadManifests breaks files in many ways: each is named, the last good state
// and all other Services go on, and mending the file mends the state.
func TestBadManifests(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("good.yaml", testbed.Service("good", testbed.SecondIP, testbed.PodB))
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	d := bed.Start(nil)
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	for _, c := range []struct{ name, text, line string }{
		{"not YAML", "apiVersion: v1\nkind: Service\n  metadata: [", "web.yaml"},
		{"a wrong type", strings.Replace(testbed.Service("web", testbed.ClusterIP, testbed.PodB), "port: 80}", "port: eighty}", 1), "spec.ports"},
		{"a port too high", strings.Replace(testbed.Service("web", testbed.ClusterIP, testbed.PodB), "port: 80}", "port: 70000}", 1), "70000"},
		{"a duplicate key", "apiVersion: v1\napiVersion: v1\n" + testbed.Service("web", testbed.ClusterIP, testbed.PodB), "apiVersion"},
	} {
		before := len(d.Log())
		bed.Write("web.yaml", c.text)
		testbed.Eventually(t, c.name+": a line about it", func() bool {
			return strings.Contains(d.Log()[before:], c.line) && strings.Contains(d.Log()[before:], "web.yaml")
		})
		if !bed.Answers(testbed.SecondIP, testbed.PodB)() {
			t.Errorf("%s: the other Service does not answer", c.name)
		}
	}
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
	testbed.Eventually(t, "the mended Service", bed.Answers(testbed.ClusterIP, testbed.PodB))
}

// TestFamilies runs on a node without IPv6, and serves both where there are both.
func TestFamilies(t *testing.T) {
	for _, c := range []struct {
		name    string
		disable string
		tables  string
		v6      bool
	}{
		{"both", "0", "table ip sluice\ntable ip6 sluice", true},
		{"without IPv6", "1", "table ip sluice", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Run("sh", "-c", "echo "+c.disable+" >/proc/sys/net/ipv6/conf/all/disable_ipv6")
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("six.yaml", testbed.Service("six", testbed.ClusterV6, testbed.PodV6))
			bed.Start(nil)
			testbed.Eventually(t, "the IPv4 Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			if c.v6 {
				testbed.Eventually(t, "the IPv6 Service", bed.Answers(testbed.ClusterV6, testbed.PodV6))
			}
			if got := bed.Tables(); got != c.tables {
				t.Errorf("the kernel has %q, want %q", got, c.tables)
			}
		})
	}
}

// TestWithoutPermission says what is missing, exits with 1 and changes nothing.
func TestWithoutPermission(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	path := testbed.Binary(t)
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(bed.Dir), bed.Dir} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d := bed.Start(func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	})
	if code := d.Wait(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	lines := strings.Split(strings.TrimSpace(d.Log()), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "Error: ") || !strings.Contains(last, "NET_ADMIN") {
		t.Errorf("the last line is %q", last)
	}
	if got := bed.Tables(); got != "" {
		t.Errorf("the kernel has %q", got)
	}
}

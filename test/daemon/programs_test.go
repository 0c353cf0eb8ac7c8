package daemon

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// TestOneFamilyWithoutNAT runs on a node whose IPv6 has no table nat. The other
// family is served, the daemon is healthy, and both the log and the health
// report tell.
func TestOneFamilyWithoutNAT(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Run("iptables-"+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			without := bed.WrapProgram("ip6tables-"+variant+"-restore", `input=$(cat)
case "$input" in *"*nat"*)
	echo "ip6tables-restore: line 1: can't initialize ip6tables table 'nat': Table does not exist (do you need to insmod?)" >&2
	exit 3;;
esac
printf '%s\n' "$input" | $REAL "$@"`)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("six.yaml", testbed.Service("six", testbed.ClusterV6, testbed.PodV6))
			d := bed.Start(without, "--proxy-mode", "iptables")
			testbed.Eventually(t, "the IPv4 Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			var body string
			testbed.Eventually(t, "health", func() bool {
				code, text := bed.Health()
				body = text
				return code == http.StatusOK
			})
			if !strings.Contains(body, `"IPv4"`) || strings.Contains(body, `"IPv6"`) {
				t.Errorf("health report %s; want a status of IPv4 only", body)
			}
			if n := strings.Count(d.Log(), "Serving the other family only"); n != 1 || !strings.Contains(d.Log(), "do you need to insmod?") {
				t.Errorf("the log says %d times that a family is not served", n)
			}
			if strings.Contains(d.Log(), "Sync failed") {
				t.Error("syncs fail")
			}
		})
	}
}

// TestLegacyOutOfReach starts with CAP_NET_ADMIN only, on a host whose rules are
// in iptables-legacy, whose programs need more. Rules in the other variant
// would not be what the host asks for; if the mode is open, another may do.
func TestLegacyOutOfReach(t *testing.T) {
	for name, mode := range map[string]string{"iptables": "iptables", "open": ""} {
		t.Run(name, func(t *testing.T) { legacyOutOfReach(t, mode) })
	}
}

func legacyOutOfReach(t *testing.T, mode string) {
	bed := testbed.New(t)
	bed.Run("iptables-legacy", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	bed.Run("iptables-legacy", "-t", "nat", "-A", "PREROUTING", "-p", "udp", "-j", "ACCEPT")
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	d := bed.Start(func(cmd *exec.Cmd) {
		cmd.Args = append([]string{"setpriv", "--bounding-set", "-all,+net_admin", "--inh-caps", "-all", cmd.Path}, cmd.Args[1:]...)
		cmd.Path, cmd.Err = exec.LookPath("setpriv")
	}, "--proxy-mode", mode)
	if mode == "" {
		testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	} else if code := d.Wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	want := "the rules of this host are in iptables-legacy: the programs of iptables-legacy need CAP_NET_RAW in addition to CAP_NET_ADMIN"
	if !strings.Contains(d.Log(), want) {
		t.Errorf("the log does not say that %s", want)
	}
	if strings.Contains(d.Log(), `variant="nft"`) {
		t.Error("the other variant of iptables was taken")
	}
}

package traffic

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/traffic"
	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

// leftovers are rules like those of kube-proxy's iptables mode, which lead to an
// endpoint that is gone, beside a rule of somebody else.
const leftovers = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-BBBBBBBBBBBBBBBB - [0:0]
:THEIRS - [0:0]
-A PREROUTING -j THEIRS
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -d 172.30.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-BBBBBBBBBBBBBBBB
-A KUBE-SEP-BBBBBBBBBBBBBBBB -p tcp -m tcp -j DNAT --to-destination 10.0.0.99:8080
COMMIT
`

// TestTakeover finds kube-proxy's iptables rules in its way: they are gone soon
// after ours are there, and nobody else's is. The nft variant needs no programs for that.
func TestTakeover(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Run("sh", "-ec", "iptables-"+variant+"-restore <<'END'\n"+leftovers+"END")
			var start func(*exec.Cmd)
			if variant == "nft" {
				start = withoutPrograms
			}
			d := bed.Start(start)
			testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			d.AwaitLog("Removed objects of an earlier mode or service proxy")
			out := bed.Run("iptables-" + variant + "-save")
			if strings.Contains(out, "KUBE-") || !strings.Contains(out, "-j THEIRS") {
				t.Errorf("the rules are:\n%s", out)
			}
		})
	}
}

func withoutPrograms(cmd *exec.Cmd) { cmd.Env = append(cmd.Environ(), "PATH=/nonexistent") }

// TestTakeoverOutOfReach finds rules that the daemon cannot remove, because it lacks the
// programs: status doubts that Services work until somebody else has removed them.
func TestTakeoverOutOfReach(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Run("sh", "-ec", "iptables-legacy-restore <<'END'\n"+leftovers+"END")
	d := bed.Start(withoutPrograms)
	d.AwaitFirstSync()
	doubted := func(want bool) func() bool {
		return func() bool {
			n, err := nodeStatus(bed)
			is := slices.ContainsFunc(n.Doubts, func(d statusapi.Doubt) bool {
				return d.Kind == "LeftoverRules" && strings.Contains(d.Reason, "nat of iptables-legacy") && strings.Contains(d.Next, "kube-proxy --cleanup")
			})
			return err == nil && is == want && n.InForce() != want
		}
	}
	testbed.Eventually(t, "the doubt", doubted(true))
	if text, code := bed.Sluice("status", "--wait=1ms"); code == 0 || !strings.Contains(text, "LeftoverRules") && !strings.Contains(text, "service proxy left") {
		t.Errorf("status --wait: exit code %d, %s", code, text)
	}
	bed.Run("sh", "-ec", "iptables-legacy -t nat -F && iptables-legacy -t nat -X")
	testbed.EventuallyWithin(t, traffic.Scaled(time.Minute), "no doubt", doubted(false))
}

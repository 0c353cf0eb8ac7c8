package explain

import (
	"strings"
	"testing"

	"sluice/test/daemon/testbed"
)

// TestExplainTrace traces packets of the node and of a pod, finds the rule of another program that
// drops them, and leaves nothing behind.
func TestExplainTrace(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Start(nil, "--proxy-mode", mode)
			if text, code := bed.Sluice("status", "--wait=20s"); code != 0 {
				t.Fatalf("exit %d, %s", code, text)
			}
			before := bed.Tables()
			text, code := bed.Sluice("explain", "default/web", "--trace")
			if code != 0 || !strings.Contains(text, "no rule dropped the packet") || !strings.Contains(text, "its endpoint: 10.0.0.11:8080\n") {
				t.Errorf("nothing is in the way: exit %d\n%s", code, text)
			}
			bed.Run("nft", `table inet firewall {
				chain out { type filter hook output priority 0; tcp dport 8080 drop comment "no web"; }
				chain through { type filter hook forward priority 0; policy drop; }
			}`)
			text, code = bed.Sluice("explain", "default/web", "--trace")
			if code != 1 || !strings.Contains(strings.Join(strings.Fields(text), " "), `DROPPED by a rule of another program, in inet firewall out: tcp dport 8080 drop comment "no web" its endpoint: 10.0.0.11:8080`) {
				t.Errorf("a rule is in the way: exit %d\n%s", code, text)
			}
			text, code = bed.TraceClient()
			if code != 1 || !strings.Contains(strings.Join(strings.Fields(text), " "), "in inet firewall through: the chain's policy is drop") {
				t.Errorf("a policy is in the way of a pod: exit %d\n%s", code, text)
			}
			bed.Run("nft", "delete table inet firewall")
			if after := bed.Tables(); after != before {
				t.Errorf("something is left:\n%s", after)
			}
		})
	}
}

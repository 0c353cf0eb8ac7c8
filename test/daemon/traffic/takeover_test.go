package traffic

import (
	"strings"
	"testing"

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
// after ours are there, and nobody else's is.
func TestTakeover(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Run("sh", "-ec", "iptables-"+variant+"-restore <<'END'\n"+leftovers+"END")
			d := bed.Start(nil)
			testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			d.AwaitLog("Removed objects of another service proxy")
			out := bed.Run("iptables-" + variant + "-save")
			if strings.Contains(out, "KUBE-") || !strings.Contains(out, "-j THEIRS") {
				t.Errorf("the rules are:\n%s", out)
			}
		})
	}
}

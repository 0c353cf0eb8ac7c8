package traffic

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

func nodeStatus(bed *testbed.Testbed) (n statusapi.Node, err error) {
	return n, statusapi.AtSocket(bed.Socket).Get(bed.T.Context(), statusapi.NodePath, nil, &n)
}

// TestFirewallStartsLater has a firewall, or Docker, start after a daemon whose mode is not
// set: only rules in its chains keep Services alive. The daemon changes to mode iptables, and
// an open connection stays open.
func TestFirewallStartsLater(t *testing.T) {
	for chain, rule := range map[string]string{
		"FORWARD": "iptables-nft -P FORWARD DROP",
		"a chain": "iptables-nft -N MINE && iptables-nft -A MINE -j DROP && iptables-nft -A FORWARD -i cni0 -j MINE",
		"INPUT":   "iptables-nft -P INPUT DROP",
	} {
		t.Run(chain, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("kinds.yaml", testbed.AllKinds)
			d := bed.Start(nil, "--proxy-mode", "", "--masquerade-all")
			d.AwaitFirstSync()
			open := bed.OpenEcho()
			health := netip.AddrPortFrom(slices.DeleteFunc(lab.Config{}.LocalAddrs(), netip.Addr.Is6)[0], 30900)
			served := func() bool {
				c, err := bed.Client.Dial(t.Context(), proxy.TCP, testbed.ClientIP, health)
				if err != nil {
					return false
				}
				_ = c.Close()
				return bed.Answers(testbed.ClusterIP, testbed.PodA)()
			}
			testbed.Eventually(t, "the Service and its health check", served)
			bed.Run("sh", "-ec", rule)
			testbed.Eventually(t, "mode iptables", func() bool {
				n, err := nodeStatus(bed)
				return err == nil && n.Mode == "iptables" && n.InForce()
			})
			testbed.Eventually(t, "the Service and its health check, in spite of the firewall", served)
			bed.WantAlive(open, "after the change")
			if log := d.Log(); !strings.Contains(log, "Restarting: no proxy mode is set, and the host now requires mode iptables") {
				t.Error("the log does not say why")
			}
		})
	}
}

// TestFirewallOutOfReach has a firewall on a host whose daemon has no programs, which mode
// iptables needs, or whose mode is set to another: status doubts that Services work.
func TestFirewallOutOfReach(t *testing.T) {
	for mode, next := range map[string]string{"": "use the image with the iptables programs", "nftables": "set mode iptables"} {
		t.Run("mode "+mode, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Run("iptables-nft", "-P", "FORWARD", "DROP")
			bed.Run("nft", "add", "rule", "ip", "filter", "FORWARD", "meta", "mark", "set", "ct", "mark", "map", "{ 1 : 2 }")
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Start(withoutPrograms, "--proxy-mode", mode)
			doubted := func(want bool) func() bool {
				return func() bool {
					n, err := nodeStatus(bed)
					is := slices.ContainsFunc(n.Doubts, func(d statusapi.Doubt) bool {
						return d.Kind == "FirewallDrops" && strings.Contains(d.Reason, "policy DROP of chain FORWARD") && strings.Contains(d.Next, next)
					})
					return err == nil && is == want && n.InForce() != want
				}
			}
			testbed.Eventually(t, "the doubt", doubted(true))
			bed.Run("nft", "chain ip filter FORWARD { policy accept; }")
			testbed.Eventually(t, "no doubt", doubted(false))
			testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
		})
	}
}

package command

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/test/daemon/testbed"
)

// theirs makes rules, sets and links of others, some of them with names like
// ours: those of the kubelet and of network policy controllers.
const theirs = `set -e
for variant in nft legacy; do
	for program in iptables-$variant ip6tables-$variant; do
		for table in mangle nat filter; do
			$program -t $table -N KUBE-KUBELET-CANARY
		done
		$program -N KUBE-FIREWALL
		$program -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
		$program -A INPUT -j KUBE-FIREWALL
		$program -A OUTPUT -j KUBE-FIREWALL
		$program -N KUBE-ROUTER-FORWARD
		$program -A KUBE-ROUTER-FORWARD -p tcp --dport 9999 -m comment --comment "their own" -j REJECT
		$program -A FORWARD -j KUBE-ROUTER-FORWARD
		$program -t nat -N CNI-HOSTPORT-DNAT
		$program -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
		$program -t nat -A POSTROUTING -p udp --dport 9999 -j MASQUERADE
		$program -t raw -A PREROUTING -p udp --dport 9998 -j ACCEPT
	done
done
for program in iptables ip6tables; do
	$program-$HINT -t mangle -N KUBE-IPTABLES-HINT
done
nft -f - <<END
table ip kube-router {
	set clients { type ipv4_addr; elements = { 192.0.2.1 } }
	chain input { type filter hook input priority 5; policy accept; ip saddr @clients counter drop; }
}
table inet theirs {
	chain empty { type filter hook input priority 6; policy accept; }
}
END
ipset create KUBE-SRC-ABCDEFGHIJKLMNOP hash:net
ipset add KUBE-SRC-ABCDEFGHIJKLMNOP 192.0.2.0/24
ip link add theirs0 type bridge
ip address add 192.0.2.7/32 dev theirs0
`

// TestCleanup runs the daemon in its modes, cleans up, and checks that the host is as it was before
// the first start.
func TestCleanup(t *testing.T) {
	for _, c := range []struct {
		name  string
		hint  string // the variant that the kubelet uses; empty: there is nobody else
		modes []string
	}{
		{"nftables on an empty host", "", []string{"nftables"}},
		{"iptables on an empty host", "", []string{"iptables"}},
		{"nftables", "nft", []string{"nftables"}},
		{"iptables, variant nft", "nft", []string{"iptables"}},
		{"iptables, variant legacy", "legacy", []string{"iptables"}},
		{"ebpf", "nft", []string{"ebpf"}},
		{"one mode after the other, with ebpf", "nft", []string{"ebpf", "iptables", "ebpf", "nftables"}},
		{"one mode after the other, variant nft", "nft", []string{"nftables", "iptables", "nftables"}},
		{"one mode after the other, variant legacy", "legacy", []string{"iptables", "nftables", "iptables"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bed := testbed.New(t)
			if c.hint != "" {
				bed.Run("sh", "-c", strings.ReplaceAll(theirs, "$HINT", c.hint))
			}
			var places []string
			if slices.Contains(c.modes, "ebpf") {
				places = testbed.EBPFFlags(t)
			}
			before := bed.Ruleset()
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("six.yaml", testbed.Service("six", testbed.ClusterV6, testbed.PodV6))
			bed.Write("kinds.yaml", testbed.AllKinds)
			for i, mode := range c.modes {
				d := bed.Start(nil, append(places, "--proxy-mode", mode)...)
				d.AwaitFirstSync()
				testbed.Eventually(t, "the IPv4 Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
				testbed.Eventually(t, "the IPv6 Service", bed.Answers(testbed.ClusterV6, testbed.PodV6))
				if c.hint != "" && mode == "iptables" && !strings.Contains(d.Log(), `variant="`+c.hint+`"`) {
					t.Errorf("the daemon does not use the variant %s", c.hint)
				}
				if mode == "ebpf" && len(pinned(t, places)) == 0 {
					t.Error("there are no programs")
				}
				d.End([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2])
			}
			if bed.Ruleset() == before {
				t.Fatal("the daemon has left nothing to clean up")
			}
			for range 2 { // the second time there is nothing to do
				if code := bed.Start(nil, append(places, "--cleanup")...).Wait(); code != 0 {
					t.Errorf("exit code %d", code)
				}
				if diff := cmp.Diff(before, bed.Ruleset()); diff != "" {
					t.Errorf("the host is not as it was (-before +after):\n%s", diff)
				}
				if left := pinned(t, places); len(left) > 0 {
					t.Errorf("programs and maps are left: %v", left)
				}
			}
		})
	}
}

// pinned returns what mode ebpf has at the places that flags name.
func pinned(t *testing.T, places []string) []string {
	t.Helper()
	if len(places) == 0 {
		return nil
	}
	all, err := filepath.Glob(places[3] + "*")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

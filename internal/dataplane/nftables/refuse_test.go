package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestRefuseWithReset connects to a Service without endpoints more often than the kernel
// sends ICMP errors. A client that gets no answer waits until it retransmits its SYN.
func TestRefuseWithReset(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	pods := []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00:10::9")}
	pod, err := l.AddPod("pod", pods...)
	if err != nil {
		t.Fatal(err)
	}
	s := plainState(0)
	clusterIPs := []netip.Addr{netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:30::1")}
	for _, f := range proxy.Families {
		sp := &proxy.ServicePort{
			Key: proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: "idle", Protocol: proxy.TCP}, Family: f},
			Frontends: []proxy.Frontend{
				{Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(clusterIPs[f], 80)},
				{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(f.Unspecified(), 30080)},
			},
		}
		s.Rows[sp.Key] = sp
	}
	s.Node.NodePorts = []netip.Prefix{netip.PrefixFrom(proxy.IPv4.Unspecified(), 0), netip.PrefixFrom(proxy.IPv6.Unspecified(), 0)}
	settings := mode.Settings{MasqueradeBit: 14, ResetTCP: true}
	text, difference := &mode.Rendering{Settings: settings, Want: s, Out: &strings.Builder{}}, &mode.Rendering{Settings: settings, Want: s, Out: &strings.Builder{}, Diff: true}
	if err := l.Node().Do(func() error {
		d, err := Alone.Open(t.Context(), settings)
		if err != nil {
			return err
		}
		defer d.Close()
		return errors.Join(proxytest.Sync(t.Context(), d, s), Alone.Render(t.Context(), text), Alone.Render(t.Context(), difference))
	}); err != nil || difference.Lines > 0 {
		t.Fatalf("%v; differs: %v", err, difference.Out)
	}
	nft := exec.CommandContext(t.Context(), "nft", "-c", "-f", "-")
	nft.Stdin = strings.NewReader(text.Out.(*strings.Builder).String())
	if out, err := nft.CombinedOutput(); err != nil {
		t.Errorf("nft -c -f: %v\n%s", err, out)
	}
	node := lab.Config{}.Default().NodeAddrs
	nodeAddrs := []netip.Addr{proxy.AddrOf(node, proxy.IPv4), proxy.AddrOf(node, proxy.IPv6)}
	for _, f := range proxy.Families {
		for _, from := range []struct {
			host *lab.Host
			addr netip.Addr
		}{{pod, pods[f]}, {l.Node(), nodeAddrs[f]}, {l.Node(), clusterIPs[f]}} {
			if from.addr == clusterIPs[f] { // the node has it for a program of its own
				if err := l.Node().Bind(from.addr); err != nil {
					t.Fatal(err)
				}
			}
			for what, to := range map[string]netip.AddrPort{
				"ClusterIP":    netip.AddrPortFrom(clusterIPs[f], 80),
				"another port": netip.AddrPortFrom(clusterIPs[f], 81),
				"the NodePort": netip.AddrPortFrom(nodeAddrs[f], 30080),
			} {
				t.Run(fmt.Sprintf("from %s %v to %s", from.host.Name, from.addr, what), func(t *testing.T) {
					flows := make([]traffic.Flow, 30)
					for i := range flows {
						flows[i] = traffic.Flow{Protocol: proxy.TCP, Src: from.addr, Dst: to}
					}
					seen, err := from.host.Probe(t.Context(), flows)
					if err != nil {
						t.Fatal(err)
					}
					for i, s := range seen {
						if s.Fate != traffic.Reset {
							t.Fatalf("connection %d of %d: %v; want a reset", i+1, len(seen), s)
						}
					}
				})
			}
		}
	}
}

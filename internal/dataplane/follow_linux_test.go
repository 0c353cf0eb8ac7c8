package dataplane_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sluice/internal/config"
	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestBesideUserspace sends what nobody translates to a Service's address, from the
// node. It is refused, unless mode userspace has marked it for a socket: the rules of
// a mode that follows are there before those of the former are reduced.
func TestBesideUserspace(t *testing.T) {
	vip := netip.MustParseAddr("172.30.0.1")
	want := proxy.NewState()
	want.CIDRs = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")}
	key := proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: "web", Protocol: proxy.TCP}}
	want.Rows[key] = &proxy.ServicePort{
		Key: key, Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: netip.AddrPortFrom(vip, 80)}}, UsableSomewhere: true,
		Cluster: []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.9:8080")}},
	}
	for _, name := range []config.ProxyMode{config.NFTables, config.IPTables} {
		t.Run(string(name), func(t *testing.T) {
			l := lab.ForTest(t, lab.Config{})
			var flows []traffic.Flow
			for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
				to := netip.AddrPortFrom(vip, 81)
				ln, err := l.Outside().Listen(p, to) // where it gets without rules
				if err != nil {
					t.Fatal(err)
				}
				defer ln.Close()
				flows = append(flows, traffic.Flow{Protocol: p, Src: l.Node().Addrs[0], Dst: to, Patience: 4 * time.Second})
			}
			open(t, l.Node(), name, want)
			expect := func(when string, fate traffic.Fate) {
				seen, err := l.Node().Probe(t.Context(), flows)
				if err != nil {
					t.Fatal(err)
				}
				for i, s := range seen {
					if s.Fate != fate {
						t.Errorf("%s: %v: %v, want: %v", when, flows[i].Protocol, s, fate)
					}
				}
			}
			expect("without the mark", traffic.Refused)
			mark(t, l.Node())
			expect("with the mark", traffic.Answered)
		})
	}
}

// open opens a mode on a node until the test ends, and syncs it.
func open(t *testing.T, n *lab.Host, name config.ProxyMode, want *proxy.State) {
	t.Helper()
	m, err := dataplane.Of(name)
	if err != nil {
		t.Fatal(err)
	}
	err = n.Do(func() error {
		d, err := m.Open(context.WithoutCancel(t.Context()), mode.Settings{MasqueradeBit: 14})
		if err != nil {
			return err
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return proxytest.Sync(t.Context(), d, want)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mark has a node mark what it sends, where and as mode userspace does.
func mark(t *testing.T, n *lab.Host) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`table ip marks {
	chain output {
		type route hook output priority -150
		meta mark set mark or %#x
	}
}
`, mode.SocketMark))
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &text
	err := n.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("nft: %v: %s", err, text.String())
	}
}

package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
	"sluice/internal/kernel/sysctl/sysctltest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// variants runs a test for each variant, in a new namespace each time.
func variants(t *testing.T, test func(*testing.T, *Dataplane)) {
	for _, v := range ipt.Variants() {
		t.Run(v.String(), func(t *testing.T) {
			lab.Namespace(t)
			d, err := OpenVariant(t.Context(), mode.Settings{MasqueradeBit: 14}, v)
			if err != nil {
				t.Fatal(err)
			}
			test(t, d)
		})
	}
}

// recorder records the inputs of restores.
type recorder struct {
	ipt.Interface
	inputs []string
}

func (r *recorder) Restore(ctx context.Context, input []byte) error {
	r.inputs = append(r.inputs, string(input))
	return r.Interface.Restore(ctx, input)
}

// wantNothingToWrite checks that another Sync writes nothing.
func wantNothingToWrite(t *testing.T, d *Dataplane, s *proxy.State) {
	t.Helper()
	for _, f := range d.families {
		r := &recorder{Interface: f.programs}
		f.programs = r
		proxytest.MustSync(t, d, s)
		for _, input := range r.inputs {
			t.Errorf("another Sync writes:\n%s", input)
		}
	}
}

// faked returns a dataplane for IPv4 over a fake.
func faked() (*Dataplane, *ipttest.Fake) {
	fake := ipttest.NewFake()
	k := sysctltest.NewFake(map[string]string{"net/ipv4/conf/all/route_localnet": "0"})
	programs := map[proxy.Family]ipt.Interface{proxy.IPv4: fake}
	return newDataplane(programs, k, mode.Settings{MasqueradeBit: 14, Families: []proxy.Family{proxy.IPv4}}, 0), fake
}

func at(first byte, i int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)}), port)
}

// plainRow returns Service number i with a ClusterIP, a NodePort and n endpoints. A shift
// other than 0 changes the address of the first endpoint.
func plainRow(i, n, shift int) *proxy.ServicePort {
	sp := &proxy.ServicePort{
		Key: proxy.PortKey{ServicePortName: proxy.ServicePortName{
			Namespace: "default", Name: fmt.Sprintf("svc-%d", i), Port: "http", Protocol: proxy.TCP,
		}},
		Frontends: []proxy.Frontend{
			{Kind: proxy.ClusterIP, Addr: at(172, i, 80)},
			{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(1024+i))},
		},
		UsableSomewhere: n > 0,
	}
	for e := range n {
		if e > 0 {
			shift = 0
		}
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: at(10, i*16+e+shift, 8080)})
	}
	return sp
}

// plainState returns a state of n Services with ten endpoints each.
func plainState(n int) *proxy.State {
	s := proxy.NewState()
	s.Node = testNode()
	s.CIDRs = []netip.Prefix{netip.MustParsePrefix("172.0.0.0/8")}
	for i := range n {
		sp := plainRow(i, 10, 0)
		s.Rows[sp.Key] = sp
	}
	return s
}

func testNode() *proxy.Node {
	return &proxy.Node{
		Name:      "test",
		LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
	}
}

package nftables

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance"
	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestGuardDropsLoopbackAddresses sends datagrams with loopback addresses over a link to a
// node that has NodePorts on loopback. Only the last one, which has no loopback address,
// may arrive; without the guard, forged ones do, too.
func TestGuardDropsLoopbackAddresses(t *testing.T) {
	const port = 4001
	forged := []string{"to 127.0.0.1", "from 127.0.0.2"}
	nodePort := plainRow(0, 1, 0)
	nodePort.Key.Protocol = proxy.UDP
	nodePort.Frontends = append(nodePort.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:4002")})
	nodePort.Cluster[0] = proxy.Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr("192.168.0.2"), port), Local: true}
	for _, tt := range []struct {
		name    string
		guarded bool
		want    []string
	}{
		{"without rules", false, append(slices.Clone(forged), "honest")},
		{"with rules", true, []string{"honest"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := lab.ForTest(t, lab.Config{})
			conformance.ForgeLoopback(t, l.Outside())
			var in net.PacketConn
			if err := l.Node().Do(func() (err error) {
				if in, err = net.ListenPacket("udp4", ":4001"); err != nil || !tt.guarded {
					return errors.Join(err, sysctl.Kernel{}.Write(localnet.Name, "1"))
				}
				d, err := Alone.Open(t.Context(), mode.Settings{MasqueradeBit: 14})
				if err != nil {
					return err
				}
				s := plainState(0)
				s.Node.LocalhostNodePorts, s.Rows[nodePort.Key] = true, nodePort
				return errors.Join(proxytest.Sync(t.Context(), d, s), d.Close())
			}); err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			conformance.SendDatagram(t, l.Outside(), forged[0], "203.0.113.2", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port))
			conformance.SendDatagram(t, l.Outside(), forged[1], "127.0.0.2", netip.AddrPortFrom(netip.MustParseAddr("192.168.0.2"), port))
			conformance.SendDatagram(t, l.Outside(), "to a NodePort", "203.0.113.2", netip.MustParseAddrPort("127.0.0.1:4002"))
			conformance.SendDatagram(t, l.Outside(), "to a NodePort", "127.0.0.2", netip.MustParseAddrPort("127.0.0.1:4002"))
			conformance.SendDatagram(t, l.Outside(), "honest", "203.0.113.2", netip.AddrPortFrom(netip.MustParseAddr("192.168.0.2"), port))
			if diff := cmp.Diff(tt.want, conformance.ReceiveDatagrams(t, in, "honest")); diff != "" {
				t.Errorf("what arrived (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRefusalsAtLoopbackAreCounted has a process listen at loopback addresses on the number of a
// NodePort that is closed there: its clients are refused all the same, and counted.
func TestRefusalsAtLoopbackAreCounted(t *testing.T) {
	s := plainState(0)
	s.Node.RefusesLoopback = true
	for i, f := range proxy.Families {
		row := plainRow(i, i, 0) // one has no endpoint
		row.Key.Family = f
		row.Frontends = []proxy.Frontend{{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(f.Unspecified(), 4002)}}
		if i > 0 {
			row.Cluster[0].Addr = netip.MustParseAddrPort("[fd00:10::1]:80")
		}
		s.Rows[row.Key] = row
	}
	l := lab.ForTest(t, lab.Config{})
	err := l.Node().Do(func() error {
		d, err := Alone.Open(t.Context(), mode.Settings{MasqueradeBit: 14})
		if err != nil {
			return err
		}
		defer d.Close()
		if err := proxytest.Sync(t.Context(), d, s); err != nil {
			return err
		}
		for _, at := range []string{"127.0.0.1:4002", "[::1]:4002", "127.0.0.1:4003"} {
			in, err := net.Listen("tcp", at)
			if err != nil {
				return err
			}
			defer in.Close()
			c, err := net.Dial("tcp", at)
			if refused := errors.Is(err, unix.ECONNREFUSED); refused != strings.HasSuffix(at, ":4002") {
				t.Errorf("%s: refused %t, error %v", at, refused, err)
			}
			if err == nil {
				_ = c.Close()
			}
		}
		got := proxytest.Values(t.Context(), d, "nftables_localhost_nodeport_rejected_packets_total")
		if len(got) != 2 || got["IPv4 TCP"] == 0 || got["IPv6 TCP"] == 0 { // a client may try again
			t.Errorf("counted %v, want packets of TCP in both families", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

package nftables

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

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

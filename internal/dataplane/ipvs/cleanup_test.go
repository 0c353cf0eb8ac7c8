package ipvs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// left returns a host that a daemon has left with connections to a real server,
// and another program's virtual server.
func left(t *testing.T) (h *host, web, dns, other ipvs.Server) {
	t.Helper()
	h = newHost(t)
	tcp, udp := service(1, proxy.TCP, one, two), service(2, proxy.UDP, one)
	h.sync(h.open(mode.IPVS{}), tcp, udp)
	web, dns, other = at(tcp), at(udp), ipvs.Server{Protocol: 6, Addr: netip.MustParseAddrPort("192.0.2.1:30080")}
	h.do(ipvs.Op{Server: other, Settings: ipvs.Settings{Scheduler: "rr"}})
	h.servers.Connect(web, netip.MustParseAddrPort(two), 3)
	return h, web, dns, other
}

func (h *host) cleanup(gently bool) ([]string, error) {
	return h.kernel().cleanup(h.t.Context(), gently)
}

func TestCleanupSaysWhatItDid(t *testing.T) {
	h, web, dns, other := left(t)
	removed, err := h.cleanup(false)
	want := []string{
		web.String(), dns.String(),
		"left alone: 1 IPVS virtual server at addresses that are not on link kube-ipvs0 (those of kube-proxy's node ports cannot be told from those of other programs)",
		"link kube-ipvs0 and its addresses",
	}
	if diff := cmp.Diff(want, removed); diff != "" || err != nil {
		t.Errorf("removed (-want +got), error %v:\n%s", err, diff)
	}
	h.wantReals(web, nil)
	h.wantReals(other, map[string]uint32{})
	if removed, err := h.cleanup(false); removed != nil || err != nil {
		t.Errorf("a second time: %v, error %v", removed, err)
	}
}

// TestCleanupWaitsForConnections when another mode has taken over, and for flows
// of UDP likewise: the kernel tracks them as they came, so no rule would see them.
func TestCleanupWaitsForConnections(t *testing.T) {
	h, web, dns, _ := left(t)
	h.servers.Connect(dns, netip.MustParseAddrPort(one), 1)
	clean := func(want, reason string) {
		t.Helper()
		removed, err := h.cleanup(true)
		if reason != "" {
			reason = "keep link kube-ipvs0 and IPVS virtual servers until their connections end: " + reason
		}
		if got := strings.Join(removed, "; "); got != want || err == nil && reason != "" || err != nil && err.Error() != reason {
			t.Errorf("removed %q, error %v; want %q, %q", got, err, want, reason)
		}
	}
	clean("", "4 connections are open")
	h.wantReals(web, map[string]uint32{one: 0, two: 0})
	h.wantReals(dns, map[string]uint32{one: 0})
	h.servers.Connect(dns, netip.MustParseAddrPort(one), 0)
	clean(dns.String(), "3 connections are open")
	h.servers.Connect(web, netip.MustParseAddrPort(two), 0)
	h.wantReals(dns, nil)
	removed, err := h.cleanup(true)
	if len(removed) != 3 || err != nil {
		t.Errorf("removed %v, error %v; want the server and the link", removed, err)
	}
	h.wantReals(web, nil)
}

// TestCleanupOfNodePorts waits for nothing: conntrack translates their connections.
func TestCleanupOfNodePorts(t *testing.T) {
	h := newHost(t)
	sp := service(1, proxy.TCP, one)
	sp.Frontends = []proxy.Frontend{{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), 30000)}}
	h.sync(h.open(mode.IPVS{}), sp)
	s := ipvs.Server{Protocol: 6, Addr: netip.AddrPortFrom(aliases[proxy.IPv4], 30000)}
	h.wantReals(s, map[string]uint32{one: 1})
	h.servers.Connect(s, netip.MustParseAddrPort(one), 3)
	if removed, err := h.cleanup(true); len(removed) != 2 || err != nil {
		t.Errorf("removed %v, error %v; want the server and the link", removed, err)
	}
}

func TestServersThatAreRefusedAreNamed(t *testing.T) {
	h, web, _, _ := left(t)
	h.servers.Refuse(web, unix.EPERM)
	_, err := h.cleanup(false)
	if want := "delete IPVS virtual server TCP 10.96.0.1:80: operation not permitted"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

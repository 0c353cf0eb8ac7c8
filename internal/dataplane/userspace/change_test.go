package userspace_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/dataplane/userspace"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

var nodePort = netip.MustParseAddrPort("192.168.0.2:30080")

// TestPortsOfSessionsAreShared changes to mode nftables while UDP sessions are open. A client that
// happens to send from the port that a session has chosen gets its reply, and the clients of the
// sessions get theirs, even if they come late.
func TestPortsOfSessionsAreShared(t *testing.T) {
	n := newNode(t, relaySettings())
	release := make(chan struct{})
	seen := n.echoUDP(near, release)
	n.must(n.lab.Node().Do(func() error { return proxytest.Sync(t.Context(), n.d, n.withNodePort()) }))
	var chosen netip.AddrPort
	sessions := map[netip.AddrPort]net.Conn{vip: nil, nodePort: nil}
	for to := range sessions {
		c := n.dialAt(proxy.UDP, to)
		sessions[to] = c
		for range 2 { // the kernel learns the socket's route from the first reply
			n.must(says(c, "relayed"))
			if from := <-seen; to == vip {
				chosen = from
			}
		}
		_, err := c.Write([]byte(late))
		n.must(err)
		<-seen
	}
	n.changeToRules()

	// The sessions' sockets change at some time after the daemon is told to end.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err := n.sayFrom(chosen, "translated")
	for ; err != nil && ctx.Err() == nil; err = n.sayFrom(chosen, "translated") {
	}
	if err != nil {
		t.Fatalf("from port %d: %v", chosen.Port(), err)
	} else if from := <-seen; from == chosen {
		t.Errorf("the endpoint saw port %d of both flows", from.Port())
	}
	if open := n.count("userspace_connections", "UDP"); open != 2 {
		t.Errorf("%v sessions are open; want two", open)
	}
	close(release)
	for to, c := range sessions {
		if got := n.read(c); got != late {
			t.Errorf("the client of %v got %q; want %q", to, got, late)
		}
		if err := says(c, "still here"); err != nil {
			t.Errorf("the client of %v: %v", to, err)
		}
	}
}

// TestPortsOfFlowsAreNotTaken has flows in the kernel that another mode has translated, from a quarter of
// the ports that a session may choose: none takes such a port. Flows of former sessions have the others.
func TestPortsOfFlowsAreNotTaken(t *testing.T) {
	r := relaySettings()
	r.DrainTimeout = 0
	n := newNode(t, r)
	seen := n.echoUDP(near, nil)
	n.serve(proxy.UDP, near)
	const first = 61000
	taken := func(port uint16) bool { return port%4 == 0 }
	n.must(n.lab.Node().Do(func() error {
		flows, err := conntrack.Dial(nil)
		if err != nil {
			return err
		}
		defer flows.Close()
		for port := uint16(first); port != 0; port++ {
			f := conntrack.NewFlow(unix.IPPROTO_UDP, conntrack.StatusConfirmed, client, near.Addr(), port, near.Port(), 600, userspace.OwnMark)
			if taken(port) {
				f.Mark = 0
				f.TupleOrig.IP.DestinationAddress, f.TupleOrig.Proto.DestinationPort = vip.Addr(), vip.Port()
			}
			err = errors.Join(err, flows.Create(f))
		}
		return err
	}))
	for range 30 {
		n.must(says(n.dial(proxy.UDP), "hello"))
		if from := <-seen; from.Addr() != client || from.Port() < first || taken(from.Port()) {
			t.Errorf("a session sends from %v; want a port from %d on that no other flow has", from, first)
		}
	}
}

// withNodePort returns a state in which a Service has a NodePort, too.
func (n *testNode) withNodePort() *proxy.State {
	s := n.state(proxy.UDP, near)
	sp := s.Rows[s.Keys()[0]]
	any4 := netip.AddrPortFrom(netip.IPv4Unspecified(), nodePort.Port())
	sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: any4})
	s.Node = &proxy.Node{Name: "here", NodePorts: []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}}
	return s
}

// changeToRules tells the daemon to end, and lets mode nftables follow.
func (n *testNode) changeToRules() {
	n.Helper()
	end, ended := n.end, make(chan error, 1)
	n.end = func() error { return <-ended }
	go func() { ended <- end() }()
	settings := mode.Settings{MasqueradeBit: 14, Relay: relaySettings()}
	n.must(n.lab.Node().Do(func() error {
		next, err := nftables.Mode().Open(n.Context(), settings)
		if err != nil {
			return err
		}
		n.Cleanup(func() { next.Close() })
		if err := proxytest.Sync(n.Context(), next, n.withNodePort()); err != nil {
			return err
		}
		if _, err := userspace.Cleanup(n.Context(), settings, next); !errors.Is(err, proxy.ErrDraining) {
			n.Errorf("clean up while sessions are open: %v; want %v", err, proxy.ErrDraining)
		}
		return nil
	}))
}

// late is a text that the pod sends back only when it is told to.
const late = "late"

// echoUDP makes the pod send datagrams back, and returns who sent them.
func (n *testNode) echoUDP(at netip.AddrPort, release <-chan struct{}) <-chan netip.AddrPort {
	n.Helper()
	var c *net.UDPConn
	n.must(n.pod.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}))
	n.Cleanup(func() { c.Close() })
	seen := make(chan netip.AddrPort, 100)
	go func() {
		for {
			b := make([]byte, 100)
			got, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			seen <- from
			go func() {
				if string(b[:got]) == late {
					<-release
				}
				_, _ = c.WriteToUDPAddrPort(b[:got], from)
			}()
		}
	}()
	return seen
}

// sayFrom sends a datagram to the Service from an address and port, and waits for the echo.
func (n *testNode) sayFrom(from netip.AddrPort, what string) error {
	return n.lab.Outside().Do(func() error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(vip))
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
		return says(c, what)
	})
}

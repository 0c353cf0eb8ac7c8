package userspace_test

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"sluice/internal/proxy"
)

// sample returns what the mode has counted for one endpoint of the frontend.
func (n *testNode) sample(p proxy.Protocol, endpoint netip.AddrPort) (is proxy.Sample, found bool) {
	n.Helper()
	err := n.d.Traffic(n.Context(), func(s proxy.Sample) {
		if s.Protocol == p && s.Frontend == vip && s.Endpoint == endpoint {
			is, found = s, true
		}
	})
	if err != nil {
		n.Fatal(err)
	}
	return is, found
}

// TestTraffic counts the bytes of connections, while they are open and after they have ended, and
// drops the counts of removed endpoints.
func TestTraffic(t *testing.T) {
	n := newNode(t, relaySettings())
	const there, back = 1_000_000, 3_000_000
	n.listen(near, func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		_, _ = c.Write(make([]byte, back))
		_ = c.Close()
	})
	n.serve(proxy.TCP, near)
	for times := range uint64(3) {
		c := n.dial(proxy.TCP).(*net.TCPConn)
		if _, err := c.Write(make([]byte, there)); err != nil {
			t.Fatal(err)
		}
		n.eventually("what came is counted", func() bool {
			s, _ := n.sample(proxy.TCP, near)
			return s.Connections == times+1 && s.Active == 1 && s.Bytes == [2]uint64{(times + 1) * there, times * back}
		})
		_ = c.CloseWrite()
		if got, err := io.Copy(io.Discard, c); got != back || err != nil {
			t.Fatalf("%d bytes came back, error %v", got, err)
		}
		n.eventually("what went back is counted", func() bool {
			s, _ := n.sample(proxy.TCP, near)
			return s.Connections == times+1 && s.Active == 0 && s.Bytes == [2]uint64{(times + 1) * there, (times + 1) * back} &&
				s.Packets[proxy.In] > 0 && s.Packets[proxy.Out] > 0
		})
	}
	n.serve(proxy.TCP, other)
	n.eventually("nothing is left of an endpoint that has gone", func() bool {
		_, found := n.sample(proxy.TCP, near)
		return !found
	})
}

// TestDatagramsAreCounted counts datagrams in both directions.
func TestDatagramsAreCounted(t *testing.T) {
	n := newNode(t, relaySettings())
	ln, err := n.pod.Listen(proxy.UDP, near)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	n.serve(proxy.UDP, near)
	c := n.dial(proxy.UDP)
	const times, size = 20, 500
	var back uint64
	b := make([]byte, 2000)
	for range times {
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		got, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		back += uint64(got)
	}
	n.eventually("datagrams are counted", func() bool {
		s, _ := n.sample(proxy.UDP, near)
		return s.Traffic == proxy.Traffic{Connections: 1, Active: 1, Bytes: [2]uint64{times * size, back}, Packets: [2]uint64{times, times}}
	})
}

// TestRefusalsDoNotBlock checks that new connections do not wait while the counters of the rules
// are read from the kernel.
func TestRefusalsDoNotBlock(t *testing.T) {
	n := newNode(t, relaySettings())
	n.serve(proxy.UDP)
	c := n.dial(proxy.UDP)
	n.eventually("refused packets are counted", func() (told bool) {
		// There are no samples of endpoints, and a write may be told that the last one was refused.
		_, _ = c.Write([]byte("?"))
		err := n.d.Traffic(t.Context(), func(proxy.Sample) {
			if told = true; !n.d.MetersUnlocked() {
				t.Error("connections cannot be counted meanwhile")
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return told
	})
}

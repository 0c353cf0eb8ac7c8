package traffic_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// everySocket are the ways of making sockets for a protocol and family.
func everySocket(p proxy.Protocol, f proxy.Family) (out []traffic.Socket) {
	for n := range 16 {
		s := traffic.Socket{Unbound: n&1 != 0, Mapped: n&2 != 0, Unconnected: n&4 != 0, Multipath: n&8 != 0}
		if (!s.Mapped || f == proxy.IPv4 && s.Unbound) && (!s.Unconnected || p == proxy.UDP) && (!s.Multipath || p == proxy.TCP) {
			out = append(out, s)
		}
	}
	return out
}

// TestProbeByEverySocket makes flows by sockets of all kinds, and looks at them.
func TestProbeByEverySocket(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	for f, addrs := range [...][2]string{proxy.IPv4: {"10.0.0.2", "10.0.0.1"}, proxy.IPv6: {"fd00:10::2", "fd00:10::1"}} {
		server, client := netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1])
		pod, err := l.AddPod("pod", server)
		if err != nil {
			t.Fatal(err)
		}
		if src, err := l.Node().Source(server); err != nil || src != client {
			t.Errorf("the kernel chooses %v, %v, want %v", src, err, client)
		}
		for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
			to := netip.AddrPortFrom(server, 8080)
			ln, err := pod.Listen(p, to)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			for _, s := range everySocket(p, proxy.Family(f)) {
				for port, want := range map[uint16]traffic.Seen{
					8080: {Fate: traffic.Answered, Answer: traffic.Answer{By: to, Client: client}},
					9:    {Fate: map[proxy.Protocol]traffic.Fate{proxy.TCP: traffic.Reset, proxy.UDP: traffic.Refused}[p]},
				} {
					family := 0
					flow := traffic.Flow{
						Protocol: p, Src: client, Dst: netip.AddrPortFrom(server, port), Patience: 3 * time.Second, Socket: s,
						BeforeClose: func(fd int) { family, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN) },
					}
					seen, err := l.Node().Probe(t.Context(), []traffic.Flow{flow})
					if err != nil || seen[0] != want {
						t.Errorf("%v port %d by %+v: got %v, %v, want %v", p, port, s, seen, err, want)
					}
					if is6 := family == unix.AF_INET6; is6 != (s.Mapped || server.Is6()) {
						t.Errorf("%v by %+v: a socket of family %d", p, s, family)
					}
				}
			}
		}
	}
}

// TestProbeMindsWhoAnswers has another port answer a datagram.
func TestProbeMindsWhoAnswers(t *testing.T) {
	l := lab.ForTest(t, lab.Config{})
	at := netip.MustParseAddrPort("10.0.0.1:8080")
	var asked, other *net.UDPConn
	err := l.Node().Do(func() (err error) {
		if asked, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at)); err == nil {
			other, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr(), 8081)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			_, from, err := asked.ReadFromUDPAddrPort(make([]byte, 16))
			if err != nil {
				return
			}
			_, _ = other.WriteToUDPAddrPort([]byte(fmt.Sprintln(at, from.Addr())), from)
		}
	}()
	flow := traffic.Flow{Protocol: proxy.UDP, Dst: at, Patience: time.Second, Socket: traffic.Socket{Unbound: true, Unconnected: true}}
	seen, err := l.Node().Probe(t.Context(), []traffic.Flow{flow})
	if err != nil || seen[0].Fate != traffic.Broken {
		t.Errorf("got %v, %v, want a broken flow", seen, err)
	}
	asked.Close()
	<-done
}

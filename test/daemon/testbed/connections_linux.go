package testbed

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// Listen has a pod answer at port 8080.
func (b *Testbed) Listen(p proxy.Protocol, pod netip.Addr) {
	b.T.Helper()
	ln, err := b.Pods[pod].Listen(p, netip.AddrPortFrom(pod, 8080))
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { _ = ln.Close() })
}

// Ask makes one connection and returns the endpoint that answered and the fate of the connection.
func (b *Testbed) Ask(src netip.Addr, dst netip.AddrPort) (netip.Addr, traffic.Fate) {
	b.T.Helper()
	return b.AskBy(proxy.TCP, src, dst)
}

// AskBy is [Testbed.Ask] with a protocol.
func (b *Testbed) AskBy(p proxy.Protocol, src netip.Addr, dst netip.AddrPort) (netip.Addr, traffic.Fate) {
	b.T.Helper()
	seen, err := b.Pods[src].Probe(context.Background(), []traffic.Flow{{Protocol: p, Src: src, Dst: dst, Patience: traffic.Scaled(300 * time.Millisecond)}})
	if err != nil {
		b.T.Fatal(err)
	}
	return seen[0].By.Addr(), seen[0].Fate
}

// Answers returns a condition: an endpoint answers for a Service.
func (b *Testbed) Answers(dst netip.AddrPort, by netip.Addr) func() bool {
	src := ClientIP
	if dst.Addr().Is6() {
		src = ClientV6
	}
	return func() bool {
		got, fate := b.Ask(src, dst)
		return fate == traffic.Answered && got == by
	}
}

// ServeEcho starts a server on pod A that sends back what it gets, and writes a Service for it.
func (b *Testbed) ServeEcho(at netip.AddrPort) {
	b.T.Helper()
	const port = 9090
	var ln net.Listener
	if err := b.Pods[PodA].Do(func() (err error) {
		ln, err = net.Listen("tcp", netip.AddrPortFrom(PodA, port).String())
		return err
	}); err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	b.Write("echo.yaml", strings.ReplaceAll(Service("echo", at, PodA), "port: 8080", fmt.Sprintf("port: %d", port)))
}

// WantAlive sends a line over an open connection and wants it back.
func (b *Testbed) WantAlive(c net.Conn, when string) {
	b.T.Helper()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		b.T.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := c.Write([]byte("ping")); err != nil {
		b.T.Fatalf("open connection %s: %v", when, err)
	}
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
		b.T.Fatalf("open connection %s: %q, %v", when, got, err)
	}
}

// OpenEcho opens a connection to an echo server on pod A through a Service at [SecondIP].
func (b *Testbed) OpenEcho() net.Conn {
	b.T.Helper()
	b.ServeEcho(SecondIP)
	b.AwaitSync()
	var open net.Conn
	Eventually(b.T, "the connection", func() bool {
		c, err := b.Client.Dial(b.T.Context(), proxy.TCP, ClientIP, SecondIP)
		open = c
		return err == nil
	})
	b.T.Cleanup(func() { _ = open.Close() })
	b.WantAlive(open, "at first")
	return open
}

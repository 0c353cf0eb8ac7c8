package testbed

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/test/cluster/controlplane"
)

// Gate is a TCP relay to the API server for one client, which can be shut.
type Gate struct {
	At netip.AddrPort

	host    *lab.Host // that listens on At
	hub     *lab.Host
	running sync.WaitGroup

	mu    sync.Mutex
	ln    net.Listener // nil if shut
	conns map[net.Conn]bool
}

// NewGate opens a gate on a port of the control plane's host.
func (c *Cluster) NewGate(port uint16) (*Gate, error) {
	return c.NewGateOn(c.Hub(), netip.AddrPortFrom(hubAddrs[0], port))
}

// NewGateOn opens a gate on any host, which needs no route to the API server. At 127.0.0.1 the API
// server's certificate is valid.
func (c *Cluster) NewGateOn(h *lab.Host, at netip.AddrPort) (*Gate, error) {
	g := &Gate{At: at, host: h, hub: c.Hub(), conns: map[net.Conn]bool{}}
	return g, g.Open()
}

// Open listens and relays connections.
func (g *Gate) Open() error {
	var ln net.Listener
	err := g.host.Do(func() error {
		var err error
		ln, err = net.Listen("tcp4", g.At.String())
		return err
	})
	if err != nil {
		return fmt.Errorf("open the gate on %v: %w", g.At, err)
	}
	g.mu.Lock()
	g.ln = ln
	g.mu.Unlock()
	g.running.Go(func() { g.accept(ln) })
	return nil
}

// Shut closes all connections and refuses new ones until Open.
func (g *Gate) Shut() {
	g.mu.Lock()
	if g.ln != nil {
		_ = g.ln.Close()
		g.ln = nil
	}
	g.cut()
	g.mu.Unlock()
	g.running.Wait()
}

// Cut closes all connections; new ones are accepted.
func (g *Gate) Cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut()
}

func (g *Gate) cut() {
	for conn := range g.conns {
		_ = conn.Close()
	}
}

func (g *Gate) accept(ln net.Listener) {
	for {
		in, err := ln.Accept()
		if err != nil {
			return // shut
		}
		out, err := g.hub.Dial(context.Background(), proxy.TCP, netip.Addr{},
			netip.AddrPortFrom(hubAddrs[0], controlplane.Port))
		if err != nil {
			_ = in.Close() // the client sees an API server that is down
			continue
		}
		if !g.track(ln, in, out) {
			return
		}
		g.running.Go(func() { g.copy(in, out) })
		g.running.Go(func() { g.copy(out, in) })
	}
}

// track records connections for cut, or closes them if the gate was shut meanwhile.
func (g *Gate) track(ln net.Listener, conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range conns {
		if g.ln != ln {
			_ = conn.Close()
			continue
		}
		g.conns[conn] = true
	}
	return g.ln == ln
}

// copy relays one direction, and closes the connection when it ends.
func (g *Gate) copy(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range []net.Conn{to, from} {
		_ = conn.Close()
		delete(g.conns, conn)
	}
}

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

// Gate is a second way to the API server, for one client, which can be shut.
type Gate struct {
	At netip.AddrPort

	host    *lab.Host // that has the address
	hub     *lab.Host
	running sync.WaitGroup

	mu    sync.Mutex
	ln    net.Listener // nil: shut
	conns map[net.Conn]bool
}

// NewGate opens a gate on a port of the control plane's host.
func (c *Cluster) NewGate(port uint16) (*Gate, error) {
	return c.NewGateOn(c.Hub(), netip.AddrPortFrom(hubAddrs[0], port))
}

// NewGateOn opens a gate on any host, which need not know another way to the API
// server. If it is not to be asked for its name, the address is 127.0.0.1.
func (c *Cluster) NewGateOn(h *lab.Host, at netip.AddrPort) (*Gate, error) {
	g := &Gate{At: at, host: h, hub: c.Hub(), conns: map[net.Conn]bool{}}
	return g, g.Open()
}

// Open lets connections through.
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

// Shut breaks all connections and refuses new ones until Open.
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

// Cut breaks all connections, and takes new ones.
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
		if !g.keep(ln, in, out) {
			return
		}
		g.running.Go(func() { g.copy(in, out) })
		g.running.Go(func() { g.copy(out, in) })
	}
}

// keep notes connections to be broken, unless it is too late for them.
func (g *Gate) keep(ln net.Listener, conns ...net.Conn) bool {
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

// copy carries one direction. When it ends, so does the connection.
func (g *Gate) copy(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range []net.Conn{to, from} {
		_ = conn.Close()
		delete(g.conns, conn)
	}
}

package userspace

import (
	"context"
	"net/netip"
	"syscall"

	"sluice/internal/proxy"
)

// Relayed returns the connections and sessions from a client to an address that are
// relayed to an endpoint. It waits for all workers.
func (d *Dataplane) Relayed(ctx context.Context, p proxy.Protocol, from netip.Addr, to netip.AddrPort) (all []proxy.RelayedFlow, err error) {
	found := make(chan []proxy.RelayedFlow, len(d.server.workers))
	for _, w := range d.server.workers {
		w.do(func() { found <- w.relayed(p, from, to) })
	}
	for range d.server.workers {
		select {
		case some := <-found:
			all = append(all, some...)
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
	return all, nil
}

func (w *worker) relayed(p proxy.Protocol, from netip.Addr, to netip.AddrPort) (all []proxy.RelayedFlow) {
	if p == proxy.UDP {
		for f, x := range w.sessions {
			if f.Client.Addr() == from && f.Dst == to {
				all = append(all, proxy.RelayedFlow{Client: f.Client, Endpoint: x.Endpoint})
			}
		}
		return all
	}
	for fd, s := range w.sockets {
		c, ok := s.socket.(*connection)
		if !ok || c.fds[client] != int(fd) || c.fds[endpoint] < 0 || c.dialing != nil || c.Client.Addr() != from {
			continue
		}
		if at, err := syscall.Getsockname(int(fd)); err == nil && addrPort(at) == to {
			all = append(all, proxy.RelayedFlow{Client: c.Client, Endpoint: c.Endpoint.Addr})
		}
	}
	return all
}

package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"sluice/internal/statusapi"
)

// connectTimeout limits the connection of --connect. The kernel sends the first
// packet again after one second.
const connectTimeout = 3 * time.Second

// How often, and with which pauses, an answered connection's endpoint is looked for.
const (
	endpointTries = 5
	endpointPause = 100 * time.Millisecond
)

// connect makes a real connection to the explained target from this node. While it
// is open, or has failed just now, it asks for another explanation, with the
// connection's source address, whose flows show where the connection went.
func (o *explainOptions) connect(ctx context.Context, e *statusapi.Explanation) (*statusapi.Explanation, error) {
	to, err := netip.ParseAddrPort(e.Packet.To)
	if err != nil || e.Packet.Protocol != "TCP" {
		return nil, fmt.Errorf("--connect: only TCP has a handshake to observe, and this is %s to %q", e.Packet.Protocol, e.Packet.To)
	}
	local, err := o.localAddress(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("--connect: %w", err)
	}
	d := net.Dialer{Timeout: connectTimeout, LocalAddr: local}
	started := time.Now()
	c, err := d.DialContext(ctx, "tcp", to.String())
	h := &statusapi.Handshake{Seconds: time.Since(started).Seconds()}
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		e.Handshake, h.Error = h, err.Error()
		if again, failed := o.askAbout(ctx, sourceOf(ctx, local, to)); failed == nil {
			h.Endpoint = endpointOfFlow(again.Flows, uint16(local.Port))
		}
		if e.Reason == statusapi.Forwarded {
			e.Try = append(e.Try, fmt.Sprintf("connect to %s directly: its server, a network policy or the route back may be the cause",
				cmp.Or(h.Endpoint, "each endpoint")))
		}
		return e, nil
	}
	defer func() { _ = c.Close() }()
	client := c.LocalAddr().(*net.TCPAddr).AddrPort()
	client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port())
	for range endpointTries {
		if e, err = o.askAbout(ctx, client); err != nil {
			return nil, err
		}
		if e.Handshake, h.Endpoint = h, endpointOfFlow(e.Flows, client.Port()); h.Endpoint != "" {
			break
		}
		if endpoint, ok := endpointOf(client, to); ok {
			h.Endpoint = endpoint.String()
			break
		}
		select { // A process that relays answers before it has connected to an endpoint.
		case <-time.After(endpointPause):
		case <-ctx.Done():
		}
	}
	return e, nil
}

// localAddress returns the address to connect from: that of --from, or one that the
// kernel chooses. Its port is free. It is known before the connection is made, so
// that one which fails can be found.
func (o *explainOptions) localAddress(ctx context.Context, to netip.AddrPort) (*net.TCPAddr, error) {
	network := "tcp4"
	if to.Addr().Is6() {
		network = "tcp6"
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, net.JoinHostPort(o.From, "0"))
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil, fmt.Errorf("%s is not an address of this node, from which it connects: leave out --from", o.From)
	}
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	local := l.Addr().(*net.TCPAddr)
	if o.From == "" {
		local.IP = nil
	}
	return local, l.Close()
}

// sourceOf returns local, with the address that the kernel would choose if it has none.
func sourceOf(ctx context.Context, local *net.TCPAddr, to netip.AddrPort) netip.AddrPort {
	source := local.AddrPort()
	if local.IP == nil {
		c, err := new(net.Dialer).DialContext(ctx, "udp", to.String()) // sends nothing
		if err != nil {
			return netip.AddrPort{}
		}
		source = c.LocalAddr().(*net.UDPAddr).AddrPort()
		_ = c.Close()
	}
	return netip.AddrPortFrom(source.Addr().Unmap(), uint16(local.Port))
}

// askAbout asks for an explanation of packets of one client, and its connection from one port.
func (o *explainOptions) askAbout(ctx context.Context, client netip.AddrPort) (*statusapi.Explanation, error) {
	again := *o
	again.From, again.port = client.Addr().String(), client.Port()
	return again.ask(ctx)
}

// endpointOfFlow returns the endpoint of the client's connection from a port, or "".
func endpointOfFlow(flows *statusapi.OpenFlows, port uint16) string {
	if flows == nil {
		return ""
	}
	for _, f := range flows.Items {
		if client, err := netip.ParseAddrPort(f.Client); err == nil && client.Port() == port {
			return f.Endpoint
		}
	}
	return ""
}

package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"sluice/internal/statusapi"
)

// connectTime is how long a connection that is tried may take. The kernel sends
// the first packet again after one second.
const connectTime = 3 * time.Second

// connect tries what was explained with a real connection from this node. It is
// explained once more while that is open, with the address that it has, so that
// the client's flows tell which endpoint answered.
func (o *explainOptions) connect(ctx context.Context, e *statusapi.Explanation) (*statusapi.Explanation, error) {
	if e.Packet.To == "" || e.Packet.Protocol != "TCP" {
		return nil, fmt.Errorf("--connect: only TCP has a handshake that can be seen, this is %s to %q", e.Packet.Protocol, e.Packet.To)
	}
	d := net.Dialer{Timeout: connectTime}
	if o.question.From != "" {
		from, err := netip.ParseAddr(o.question.From)
		if err != nil {
			return nil, err
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	began := time.Now()
	c, err := d.DialContext(ctx, "tcp", e.Packet.To)
	h := &statusapi.Handshake{Seconds: time.Since(began).Seconds()}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil, fmt.Errorf("--connect goes out from this node, and %s is not its address: leave --from out", o.question.From)
	}
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		h.Error = err.Error()
		e.Handshake = h
		if e.Reason == statusapi.Forwarded {
			e.Try = append(e.Try, "connect to each endpoint directly: its server, a network policy or the way back may be at fault")
		}
		return e, nil
	}
	defer func() { _ = c.Close() }()
	local := c.LocalAddr().(*net.TCPAddr).AddrPort()
	again := *o
	again.question.From = local.Addr().Unmap().String()
	if e, err = again.ask(ctx); err != nil {
		return nil, err
	}
	if e.Handshake = h; e.Flows != nil {
		for _, f := range e.Flows.Items {
			if f.Client == netip.AddrPortFrom(local.Addr().Unmap(), local.Port()).String() {
				h.Endpoint = f.Endpoint
			}
		}
	}
	return e, nil
}

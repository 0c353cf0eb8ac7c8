package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"sluice/internal/statusapi"
)

const (
	// traceTime is how long --trace waits for a packet unless it is told.
	traceTime = 10 * time.Second

	// traceQuiet is after how much silence a packet has met its last rule.
	traceQuiet = 300 * time.Millisecond
)

// follow follows the first packet that is as explained through all rules. A packet
// of this node it sends itself.
func (o *explainOptions) follow(ctx context.Context, says io.Writer, e *statusapi.Explanation) (*statusapi.Trace, error) {
	dst, err := netip.ParseAddrPort(e.Packet.To)
	if err != nil {
		return nil, errors.New("--trace: there is no address to send a packet to")
	}
	ctx, cancel := context.WithTimeout(ctx, o.trace)
	defer cancel()
	begun, src := func() { go touch(ctx, e.Packet.Protocol, dst) }, netip.Addr{}
	switch {
	case e.Packet.Origin == "this node" && e.Packet.Protocol == "SCTP":
		return nil, errors.New("--trace: only TCP and UDP are sent from this node: name a client with --from, and let it connect")
	case e.Packet.Origin != "this node":
		if src, err = netip.ParseAddr(e.Packet.From); err != nil {
			return nil, errors.New("--trace: name the client with --from")
		}
		begun = func() {
			fmt.Fprintf(says, "Waiting for a packet from %v to %v, for %v: let the client connect now.\n", src, dst, o.trace)
		}
	}
	t := &statusapi.Trace{}
	steps, err := traceOne(ctx, cancel, traced{e.Packet.Protocol, src, dst}, begun)
	if err != nil {
		return nil, err
	}
	for _, s := range steps {
		t.Steps = append(t.Steps, s.TraceStep)
		if s.drops {
			d := s.TraceStep
			d.Rule = ruleText(ctx, d)
			t.DroppedBy = &d
		}
	}
	if len(steps) == 0 {
		t.Unknown = fmt.Sprintf("no such packet came within %v", o.trace)
	}
	if names := untraceable(dst.Addr()); names != "" {
		t.Unknown = strings.TrimPrefix(t.Unknown+"; rules of iptables-legacy cannot be followed, and there are some: "+names, "; ")
	}
	return t, nil
}

// traced says which packets are followed.
type traced struct {
	protocol string
	src      netip.Addr // invalid: any
	dst      netip.AddrPort
}

// tracedStep is a step of a packet.
type tracedStep struct {
	statusapi.TraceStep
	drops bool
}

// touch sends a first packet from this node.
func touch(ctx context.Context, protocol string, dst netip.AddrPort) {
	var d net.Dialer
	c, err := d.DialContext(ctx, strings.ToLower(protocol), dst.String())
	if err != nil {
		return // the trace tells
	}
	_, _ = c.Write([]byte{0})
	_ = c.Close()
}

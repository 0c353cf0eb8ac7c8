package ct

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Interface is the connection tracking of one network namespace. Its methods must not be called
// concurrently.
type Interface interface {
	// Dump returns the flows of a family and protocol for which keep returns true. keep must not
	// retain the flow. Flows that the kernel adds or removes during the dump may or may not be in
	// the result.
	//
	// An error that wraps [ErrIncomplete] is accompanied by the flows that were seen.
	Dump(ctx context.Context, f Filter, keep func(*Flow) bool) ([]Flow, error)

	// Each calls each for every flow, of both families and all protocols, whose destination was
	// translated. each must not retain the flow. Flows that the kernel adds or removes meanwhile
	// may or may not be included. Begin is called before the first flow, and again whenever the
	// dump has to start over.
	Each(ctx context.Context, begin func(), each func(*Flow)) error

	// Delete makes the kernel forget a flow that Dump returned, so that the rules apply to its next
	// packet as to a first one. It returns [ErrNotFound] if the flow is gone.
	Delete(ctx context.Context, f *Flow) error

	// Close releases the connection.
	Close() error
}

// Ends reports flows that end. Its methods must not be called concurrently.
type Ends interface {
	// Take calls each for the translated flows that have ended since the last call, and with nil
	// wherever the kernel has lost events. each must not retain the flow. A flow that
	// [Interface.Each] omits because it has ended is delivered by the next Take.
	Take(each func(*Flow)) error

	// Close stops listening.
	Close() error
}

// ErrNotFound means that a flow no longer exists.
var ErrNotFound = errors.New("no such flow")

// ErrIncomplete is wrapped by the error of a dump that may lack flows.
var ErrIncomplete = errors.New("the dump is incomplete")

// Filter selects the flows of a dump.
type Filter struct {
	IPv6     bool
	Protocol uint8 // as in the IP header

	// The client and the address that it connected to: both or neither.
	Src netip.Addr
	Dst netip.AddrPort

	Most int // the maximum number of flows to return, in no particular order; 0 means all
}

// full reports whether a dump with so many flows has reached Most.
func (f Filter) full(flows int) bool { return f.Most > 0 && flows >= f.Most }

func (f Filter) String() string {
	if f.IPv6 {
		return fmt.Sprintf("IPv6 protocol %d", f.Protocol)
	}
	return fmt.Sprintf("IPv4 protocol %d", f.Protocol)
}

func (f Filter) Matches(flow *Flow) bool {
	return flow.Protocol == f.Protocol && flow.Orig.Dst.Addr().Is6() == f.IPv6 &&
		(!f.Src.IsValid() || flow.Orig.Src.Addr() == f.Src && flow.Orig.Dst == f.Dst)
}

// Flow is one tracked connection.
type Flow struct {
	Protocol uint8
	Orig     Tuple  // of the first packet, as it came in
	Reply    Tuple  // of a reply, as it comes in; NAT makes it differ from Orig reversed
	Zone     uint16 // the conntrack zone; 0 unless rules set another
	ID       uint32 // distinguishes the flow from an earlier one with the same tuples

	Translated bool    // its destination was translated (DNAT)
	Answered   bool    // a packet came back
	Closed     bool    // both ends of a TCP connection have closed it
	Carried    Carried // packets and bytes so far
}

// Carried is the traffic of a flow, including IP headers.
type Carried struct {
	Known       bool // the kernel counts it: net.netfilter.nf_conntrack_acct was 1 when the flow began
	Orig, Reply Count
}

// Count is a number of packets and of their bytes.
type Count struct{ Packets, Bytes uint64 }

// Tuple is the source and destination of a packet.
type Tuple struct {
	Src, Dst netip.AddrPort
}

func (f *Flow) String() string {
	return fmt.Sprintf("protocol %d %v -> %v, answered %v -> %v", f.Protocol, f.Orig.Src, f.Orig.Dst, f.Reply.Src, f.Reply.Dst)
}

package ct

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Interface is one network namespace's connection tracking. Its methods are
// called by one goroutine at a time.
type Interface interface {
	// Dump returns the flows of a family and protocol for which keep reports
	// true. The flow is keep's only until it returns. What the kernel changes
	// meanwhile may be in the result or not.
	//
	// An error that wraps [ErrIncomplete] comes with the flows that were seen.
	Dump(ctx context.Context, f Filter, keep func(*Flow) bool) ([]Flow, error)

	// Each calls each for every flow, of both families and all protocols, whose
	// destination was translated. The flow is each's only until it returns. What
	// the kernel changes meanwhile may come up or not. Begin is called before the
	// first flow, and again if the kernel had to be asked again from the start.
	Each(ctx context.Context, begin func(), each func(*Flow)) error

	// Delete makes the kernel forget a flow that Dump returned: its next packet
	// is a first one. A flow that is gone is [ErrNotFound].
	Delete(ctx context.Context, f *Flow) error

	// Close releases the connection.
	Close() error
}

// Ends tells of flows that end. Its methods are called by one goroutine at a time.
type Ends interface {
	// Take calls each for the flows that have ended since the last call, if their
	// destination was translated, and with nil where the kernel has lost some.
	// The flow is each's only until it returns. A flow that Each leaves out
	// because it has ended is there to be taken.
	Take(each func(*Flow)) error

	// Close stops listening.
	Close() error
}

// ErrNotFound says that there is no such flow any more.
var ErrNotFound = errors.New("no such flow")

// ErrIncomplete is wrapped by the error of a dump that lacks flows.
var ErrIncomplete = errors.New("dump is incomplete")

// Filter says which flows a dump is about.
type Filter struct {
	IPv6     bool
	Protocol uint8 // as in the IP header

	// The client and the address that it connected to, both of them or neither.
	Src netip.Addr
	Dst netip.AddrPort

	Most int // flows to return, whichever come first; 0: all
}

// full reports whether so many flows are as many as the filter asks for.
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
	Orig     Tuple  // of its first packet, as that came in
	Reply    Tuple  // of an answer, as that comes in: NAT makes it differ from Orig reversed
	Zone     uint16 // 0 unless rules put the flow elsewhere
	ID       uint32 // tells it from an earlier flow with the same tuples

	Translated bool    // its destination was
	Closed     bool    // both ends of a TCP connection are done with it
	Carried    Carried // so far
}

// Carried is what a flow has carried, headers of IP included.
type Carried struct {
	Known       bool // the kernel counts it: net.netfilter.nf_conntrack_acct was 1 when the flow began
	Orig, Reply Count
}

// Count is packets and their bytes.
type Count struct{ Packets, Bytes uint64 }

// Tuple is where a packet comes from and goes to.
type Tuple struct {
	Src, Dst netip.AddrPort
}

func (f *Flow) String() string {
	return fmt.Sprintf("protocol %d %v -> %v, answered %v -> %v", f.Protocol, f.Orig.Src, f.Orig.Dst, f.Reply.Src, f.Reply.Dst)
}

package proxy

import (
	"context"
	"net/netip"
)

// Direction is which way packets of a connection go.
type Direction uint8

const (
	In  Direction = iota // from clients to endpoints
	Out                  // from endpoints to clients
)

var Directions = [...]Direction{In, Out}

func (d Direction) String() string { return [...]string{"in", "out"}[d] }

// Traffic is what was counted of something.
type Traffic struct {
	Connections uint64
	Active      uint64                  // connections that are open
	Bytes       [len(Directions)]uint64 // headers of IP included, unless a mode sees only what is within
	Packets     [len(Directions)]uint64
}

// Sample is what a dataplane has counted at one frontend, for an endpoint or for a
// reason to refuse.
type Sample struct {
	Protocol Protocol
	Frontend netip.AddrPort // what clients sent to; of a NodePort it may be any address of the node, or the unspecified one
	Endpoint netip.AddrPort // where connections went; invalid where packets were refused
	Traffic                 // of packets that were refused only Packets

	Refused Reason // why, without an endpoint
}

// Metered is a Dataplane that counts traffic itself: all that connection tracking
// does not know to be translated, and what is refused.
type Metered interface {
	// Traffic yields what was counted up to now. What is less than it was before
	// began anew. Any goroutine may call it; it may take as long as reading
	// everything there is.
	Traffic(ctx context.Context, yield func(Sample)) error
}

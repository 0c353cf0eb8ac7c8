package proxy

import (
	"context"
	"net/netip"
)

// Direction is the direction of packets of a connection.
type Direction uint8

const (
	In  Direction = iota // from clients to endpoints
	Out                  // from endpoints to clients
)

var Directions = [...]Direction{In, Out}

func (d Direction) String() string { return [...]string{"in", "out"}[d] }

// Traffic has counters of traffic.
type Traffic struct {
	Connections uint64
	Active      uint64                  // connections that are open now
	Failed      uint64                  // connections that the endpoint refused or did not answer
	Bytes       [len(Directions)]uint64 // including IP headers, unless the mode sees payload only
	Packets     [len(Directions)]uint64
}

// Sample has what a dataplane counted at one frontend, for one endpoint or for one
// reason to refuse packets.
type Sample struct {
	Protocol Protocol
	Frontend netip.AddrPort // the destination of the clients; for a NodePort any address of the node, or the unspecified one
	Endpoint netip.AddrPort // invalid for packets that were refused
	Traffic                 // for packets that were refused, only Packets is set

	Refused Reason // why packets were refused, if Endpoint is invalid
}

// Metered is a Dataplane that counts traffic itself: connections that conntrack does
// not know to be translated, and packets that are refused.
type Metered interface {
	// Traffic yields the counters. One that is smaller than the last time was reset
	// in between. Any goroutine may call it. Its cost is O(state).
	Traffic(ctx context.Context, yield func(Sample)) error
}

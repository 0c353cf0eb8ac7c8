package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Interface is the IPVS of one network namespace. Its methods are called by one
// goroutine at a time.
type Interface interface {
	// Servers returns all virtual servers except those defined by a firewall mark.
	Servers(ctx context.Context) (map[Server]Settings, error)

	// Server returns the settings of one virtual server, and false if it does not exist.
	Server(ctx context.Context, s Server) (Settings, bool, error)

	// Counted returns the counters of all virtual servers that Servers returns.
	Counted(ctx context.Context) (map[Server]Stats, error)

	// Reals returns the real servers of a virtual server; none if it does not exist.
	Reals(ctx context.Context, s Server) ([]RealState, error)

	// Do carries out operations in order, whether or not earlier ones fail. It returns
	// the errors of refused operations by index. If err is not nil, it is unknown
	// which operations were carried out.
	Do(ctx context.Context, ops []Op) (refused map[int]error, err error)

	// SetTimeouts sets how long idle connections are kept.
	SetTimeouts(ctx context.Context, t Timeouts) error

	// Close closes the connection; all servers stay.
	Close() error
}

// ErrMissing is returned if the kernel has no IPVS.
var ErrMissing = errors.New("the kernel has no IPVS")

// Server names a virtual server.
type Server struct {
	Protocol uint8 // as in the IP header
	Addr     netip.AddrPort
}

// String returns the server as in log and error messages.
func (s Server) String() string {
	name := map[uint8]string{6: "TCP", 17: "UDP", 132: "SCTP"}[s.Protocol]
	return fmt.Sprintf("IPVS virtual server %s %v", cmp.Or(name, fmt.Sprint(s.Protocol)), s.Addr)
}

// Settings determine how a virtual server chooses real servers.
type Settings struct {
	Scheduler   string
	Fallback    bool          // hashing schedulers replace a real server of weight 0 by another one, instead of refusing
	HashPorts   bool          // hashing schedulers include the client's port
	Persistence time.Duration // how long a client keeps its real server, in whole seconds; 0: no persistence
}

// Real is a real server, to which IPVS forwards by NAT.
type Real struct {
	Addr   netip.AddrPort
	Weight uint32 // 0: no new connections, existing ones stay
}

// RealState is a real server with its connections and counters.
type RealState struct {
	Real
	Connections uint32 // all that IPVS keeps, closing ones included
	Active      uint32 // those of them that are open
	Stats       Stats
}

// Stats are the counters of a server since it was added. Index 0 is the direction to
// real servers, 1 the way back. Bytes include IP headers.
type Stats struct {
	Connections    uint64
	Packets, Bytes [2]uint64
}

// Op is an operation on a virtual server, or on one of its real servers.
type Op struct {
	Verb
	Server   Server
	Settings Settings // of a virtual server to add or set
	Real     Real     // zero: the operation is on the virtual server itself
}

// Verb is the kind of an operation. Set changes a server that exists.
type Verb uint8

// The verbs.
const (
	Add Verb = iota
	Set
	Delete
)

// String returns the operation in words.
func (o Op) String() string {
	what := [...]string{"add ", "set ", "delete "}[o.Verb]
	if o.Real.Addr.IsValid() {
		what += fmt.Sprintf("real server %v of ", o.Real.Addr)
	}
	return what + o.Server.String()
}

// Timeouts are how long idle connections are kept, in whole seconds; 0: unchanged.
type Timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

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
	// Servers returns all virtual servers but those known by a firewall mark.
	Servers(ctx context.Context) (map[Server]Settings, error)

	// Server returns one virtual server by its name; false if there is none.
	Server(ctx context.Context, s Server) (Settings, bool, error)

	// Counted returns what the virtual servers that Servers has were used for.
	Counted(ctx context.Context) (map[Server]Stats, error)

	// Reals returns the real servers of a virtual server; none if it is gone.
	Reals(ctx context.Context, s Server) ([]RealState, error)

	// Do carries out operations in order, each of them whatever became of those
	// before. It returns why some were refused, by their places. After an error
	// nobody knows which of them were done.
	Do(ctx context.Context, ops []Op) (refused map[int]error, err error)

	// SetTimeouts says how long idle connections are remembered.
	SetTimeouts(ctx context.Context, t Timeouts) error

	// Close releases the connection; all servers stay.
	Close() error
}

// ErrMissing says that the kernel has no IPVS.
var ErrMissing = errors.New("the kernel has no IPVS")

// Server names a virtual server.
type Server struct {
	Protocol uint8 // as in the IP header
	Addr     netip.AddrPort
}

// String returns the server as messages name it.
func (s Server) String() string {
	name := map[uint8]string{6: "TCP", 17: "UDP", 132: "SCTP"}[s.Protocol]
	return fmt.Sprintf("IPVS virtual server %s %v", cmp.Or(name, fmt.Sprint(s.Protocol)), s.Addr)
}

// Settings are how a virtual server chooses real servers.
type Settings struct {
	Scheduler   string
	Fallback    bool          // schedulers that hash take another real server for one of weight 0, instead of none
	HashPorts   bool          // schedulers that hash the client's address hash its port, too
	Persistence time.Duration // how long a client keeps its real server, in seconds; 0: not at all
}

// Real is a real server; connections are sent to it by translating addresses.
type Real struct {
	Addr   netip.AddrPort
	Weight uint32 // 0: it gets no new connections and keeps those that it has
}

// RealState is a real server and what it is doing.
type RealState struct {
	Real
	Connections uint32 // that are remembered, ending ones included
	Active      uint32 // those of them that are open
	Stats       Stats
}

// Stats is what a server was used for since it was added, by direction: to real
// servers, and back. Bytes are those of packets, with the header of IP.
type Stats struct {
	Connections    uint64
	Packets, Bytes [2]uint64
}

// Op is one thing to do to a virtual server, or to a real server of it.
type Op struct {
	Verb
	Server   Server
	Settings Settings // of a virtual server that is added or set
	Real     Real     // zero: it is about the virtual server itself
}

// Verb is what to do. To set is to change what is there.
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

// Timeouts are how long idle connections are remembered, in seconds; 0: as before.
type Timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

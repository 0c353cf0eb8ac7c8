package hns

import (
	"context"
	"errors"
	"net/netip"
	"strings"
)

// Interface is the Host Networking Service of a node. Its methods are called by
// one goroutine at a time. Objects have IDs, which the service gives them.
type Interface interface {
	// Features returns what this version of the service can do.
	Features(ctx context.Context) (Features, error)

	// Network returns the network of a name, or ErrNotFound.
	Network(ctx context.Context, name string) (Network, error)

	// Endpoints returns the endpoints of all networks, by ID.
	Endpoints(ctx context.Context) (map[string]Endpoint, error)

	// CreateEndpoint adds an endpoint and returns its ID; ErrNotFound if its network
	// is gone, ErrExists if another endpoint there has its address.
	CreateEndpoint(ctx context.Context, e Endpoint) (id string, err error)

	// DeleteEndpoint removes an endpoint, or returns ErrNotFound. Load balancers
	// that have it keep its ID.
	DeleteEndpoint(ctx context.Context, id string) error

	// LoadBalancers returns all load balancers, by ID. One that has several ports or
	// addresses, or no port, is not of our making and has Protocol 0.
	LoadBalancers(ctx context.Context) (map[string]LoadBalancer, error)

	// CreateLoadBalancer adds one and returns its ID; ErrExists if another has its
	// frontend, ErrNotFound if an endpoint is gone.
	CreateLoadBalancer(ctx context.Context, l LoadBalancer) (id string, err error)

	// UpdateLoadBalancer gives one other endpoints; ErrNotFound if it, or one of
	// them, is gone, ErrUnsupported where Features has no ModifyLoadBalancer, and in
	// some versions where it has.
	UpdateLoadBalancer(ctx context.Context, id string, l LoadBalancer) error

	// DeleteLoadBalancer removes one, or returns ErrNotFound.
	DeleteLoadBalancer(ctx context.Context, id string) error
}

// What a caller can act upon.
var (
	ErrNotFound    = errors.New("no such object")
	ErrExists      = errors.New("it is there already")
	ErrNotRunning  = errors.New("the Host Networking Service does not run")
	ErrUnsupported = errors.New("this version of the Host Networking Service cannot do that")
)

// Features are what some versions of the service can do and others cannot.
type Features struct {
	DSR                bool // direct server return
	DualStack          bool
	RemoteSubnet       bool // overlay networks
	SessionAffinity    bool
	ModifyLoadBalancer bool
}

// Network is a virtual network of the node.
type Network struct {
	ID, Name string
	Type     string // "Overlay", "L2Bridge", ...
	Remote   []RemoteSubnet
}

// RemoteSubnet is where an overlay network has the pods of another node.
type RemoteSubnet struct {
	Prefix   netip.Prefix
	Provider netip.Addr // the node's address below the overlay
}

// Endpoint is something with addresses on a network: a pod here, or one elsewhere
// that a load balancer sends connections to.
type Endpoint struct {
	Network  string // its ID
	Name     string
	Addrs    []netip.Addr
	MAC      string
	Remote   bool       // it is on another node
	Provider netip.Addr // the node's address below an overlay; invalid: none
}

// LoadBalancer sends connections to a frontend to its endpoints.
type LoadBalancer struct {
	VIP          netip.Addr // invalid: any address of the node
	Family6      bool       // says the family where there is no VIP, too
	Protocol     uint8      // as in the IP header
	ExternalPort uint16     // that is connected to
	InternalPort uint16     // of the endpoints
	Endpoints    []string   // IDs
	SourceVIP    netip.Addr // what the endpoints see as their client; invalid: the client itself
	Flags        Flags
}

// Flags are how a load balancer goes about, as the service has it: the lowest byte is
// the load balancer's, the next its port's, and the third says how it distributes.
type Flags uint32

const (
	DSR            Flags = 1       // answers do not come back through it
	ILB            Flags = 1 << 8  // it is for clients on this node
	LocalRoutedVIP Flags = 2 << 8  // the node itself reaches the VIP
	UseMux         Flags = 4 << 8  // direct server return for what comes from elsewhere
	PreserveDIP    Flags = 8 << 8  // endpoints see the VIP as the destination
	ExternalVIP    Flags = 16 << 8 // the VIP is not the cluster's own
	ByClient       Flags = 2 << 16 // a client keeps its endpoint
)

var flagNames = []string{0: "DSR", 8: "ILB", 9: "LocalRoutedVIP", 10: "UseMux", 11: "PreserveDIP", 12: "ExternalVIP", 17: "ByClient"}

func (f Flags) String() string {
	var set []string
	for i, name := range flagNames {
		if f&(1<<i) != 0 && name != "" {
			set = append(set, name)
		}
	}
	return strings.Join(set, " ")
}

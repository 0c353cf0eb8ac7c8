package hns

import (
	"context"
	"errors"
	"net/netip"
	"strings"
)

// Interface is the Host Networking Service of a node. Its methods must not be called concurrently.
// The service assigns the IDs of objects.
type Interface interface {
	// Features returns what this version of the service supports.
	Features(ctx context.Context) (Features, error)

	// Network returns the network with a name, or ErrNotFound.
	Network(ctx context.Context, name string) (Network, error)

	// Endpoints returns the endpoints of all networks, by ID.
	Endpoints(ctx context.Context) (map[string]Endpoint, error)

	// CreateEndpoint creates an endpoint and returns its ID. It returns ErrNotFound if the network
	// does not exist, and ErrExists if another endpoint on it has the address.
	CreateEndpoint(ctx context.Context, e Endpoint) (id string, err error)

	// DeleteEndpoint deletes an endpoint, or returns ErrNotFound. Load balancers that use it keep
	// its ID.
	DeleteEndpoint(ctx context.Context, id string) error

	// LoadBalancers returns all load balancers, by ID. One with several ports or addresses, or
	// without a port, cannot be ours and has Protocol 0.
	LoadBalancers(ctx context.Context) (map[string]LoadBalancer, error)

	// CreateLoadBalancer creates a load balancer and returns its ID. It returns ErrExists if
	// another has the same frontend, and ErrNotFound if an endpoint does not exist.
	CreateLoadBalancer(ctx context.Context, l LoadBalancer) (id string, err error)

	// UpdateLoadBalancer changes the endpoints of a load balancer. It returns ErrNotFound if the
	// load balancer or an endpoint does not exist, and ErrUnsupported if
	// Features.ModifyLoadBalancer is false; some versions return it although the feature is true.
	UpdateLoadBalancer(ctx context.Context, id string, l LoadBalancer) error

	// DeleteLoadBalancer deletes a load balancer, or returns ErrNotFound.
	DeleteLoadBalancer(ctx context.Context, id string) error
}

// Errors that a caller can act on.
var (
	ErrNotFound    = errors.New("no such object")
	ErrExists      = errors.New("object already exists")
	ErrNotRunning  = errors.New("the Host Networking Service is not running")
	ErrUnsupported = errors.New("not supported by this version of the Host Networking Service")
)

// Features are what only some versions of the service support.
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

// RemoteSubnet is the subnet of another node's pods on an overlay network.
type RemoteSubnet struct {
	Prefix   netip.Prefix
	Provider netip.Addr // the node's address on the underlying network
}

// Endpoint has addresses on a network: a pod of this node, or a remote endpoint to which a load
// balancer sends connections.
type Endpoint struct {
	Network  string // ID of its network
	Name     string
	Addrs    []netip.Addr
	MAC      string
	Remote   bool       // not on this node
	Provider netip.Addr // on an overlay network, the address of its node on the underlying network; otherwise invalid
}

// LoadBalancer forwards connections to a frontend to its endpoints.
type LoadBalancer struct {
	VIP          netip.Addr // invalid for all addresses of the node
	Family6      bool       // the family is IPv6; set with and without a VIP
	Protocol     uint8      // as in the IP header
	ExternalPort uint16     // that clients connect to
	InternalPort uint16     // of the endpoints
	Endpoints    []string   // IDs
	SourceVIP    netip.Addr // the source address that endpoints see; invalid for the client's own
	Flags        Flags
}

// Flags are the properties of a load balancer, in the encoding of the service: the lowest byte are
// flags of the load balancer, the next those of its port, and the third is the distribution type.
type Flags uint32

const (
	DSR            Flags = 1       // replies bypass the load balancer
	ILB            Flags = 1 << 8  // for clients on this node
	LocalRoutedVIP Flags = 2 << 8  // the node itself can reach the VIP
	UseMux         Flags = 4 << 8  // direct server return for clients from elsewhere
	PreserveDIP    Flags = 8 << 8  // endpoints see the VIP as the destination
	ExternalVIP    Flags = 16 << 8 // the VIP does not belong to the cluster's network
	ByClient       Flags = 2 << 16 // session affinity by client address
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

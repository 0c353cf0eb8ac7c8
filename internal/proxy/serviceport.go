package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// ServicePortName names one port of one Service.
type ServicePortName struct {
	Namespace string
	Name      string
	Port      string // the port's name; empty when the only port has none
	Protocol  Protocol
}

// String returns "namespace/name:port/PROTO", without the colon for an unnamed port.
func (n ServicePortName) String() string {
	s := n.Namespace + "/" + n.Name
	if n.Port != "" {
		s += ":" + n.Port
	}
	return s + "/" + n.Protocol.String()
}

// PortKey identifies a row. It includes the family: a port of a dual-stack Service
// has two rows, so dataplanes need no special case for dual-stack.
type PortKey struct {
	ServicePortName
	Family Family
}

func (k PortKey) String() string { return k.ServicePortName.String() + "/" + k.Family.String() }

func ComparePortKeys(a, b PortKey) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Port, b.Port),
		cmp.Compare(a.Protocol, b.Protocol),
		cmp.Compare(a.Family, b.Family),
	)
}

// Kind is the kind of a frontend address. Kinds are in order of precedence: if two
// Services claim the same address and port, the smaller kind wins.
type Kind uint8

const (
	ClusterIP Kind = iota
	LoadBalancer
	ExternalIP
	NodePort
)

func (k Kind) String() string {
	return [...]string{"ClusterIP", "LoadBalancer", "ExternalIP", "NodePort"}[k]
}

// Frontend is an address and port that clients of a service port connect to. A
// NodePort frontend has the unspecified address of its family, which stands for the
// node's addresses that [Node.NodePorts] selects.
type Frontend struct {
	Kind Kind
	Addr netip.AddrPort
}

// Endpoint is an address and port that connections are forwarded to.
type Endpoint struct {
	Addr        netip.AddrPort
	Local       bool   // on this node
	NodeUnknown bool   // its EndpointSlice names no node; it may be on this one
	Weight      uint16 // 0 counts as 1; see Share
}

// Share returns the effective weight: how many connections the endpoint gets for each
// connection of an endpoint without a weight.
func (e Endpoint) Share() int { return int(max(e.Weight, 1)) }

// Scope selects one of the two endpoint lists of a service port.
type Scope uint8

const (
	ScopeCluster Scope = iota
	ScopeLocal
)

func (s Scope) String() string { return [...]string{"Cluster", "Local"}[s] }

// ServicePort is one row of the wanted state. Readiness, topology and traffic policy
// are already resolved. It is immutable once published.
type ServicePort struct {
	Key             PortKey
	Frontends       []Frontend     // no other row of the same protocol has one of them, but a NodePort may cover the address and port of another
	Cluster         []Endpoint     // usable from this node, in stable slots
	Local           []Endpoint     // usable and on this node, in stable slots
	UsableSomewhere bool           // some node has a usable endpoint: then traffic to an empty list is dropped, otherwise rejected
	Internal        Scope          // the list that ClusterIP traffic takes
	External        Scope          // the list that all other traffic takes
	Balancing       Balancing      // how an endpoint is chosen from a list
	Affinity        time.Duration  // the session affinity timeout; 0 means no session affinity
	AllowFrom       []netip.Prefix // clients that may use LoadBalancer addresses, sorted, no prefix in another; nil means everyone
	HealthCheckPort uint16         // the health-check node port, if the row has LoadBalancer addresses; 0 if it has none

	// PreserveDestination means that endpoints receive connections with the
	// LoadBalancer address as the destination. Only mode kernelspace can do that.
	PreserveDestination bool

	// Draining are the endpoints in neither list that still serve, sorted: they
	// get no new connections but keep the flows they have. Only rows of protocols
	// whose stale flows are ended have them ([Protocol.EndsStaleFlows]).
	Draining []netip.AddrPort
}

// AddressesOf returns the set of addresses of the endpoints in the lists.
func AddressesOf(lists ...[]Endpoint) map[netip.AddrPort]bool {
	n := 0 // The lists of a row have most endpoints in common, so the longest gives the size.
	for _, list := range lists {
		n = max(n, len(list))
	}
	out := make(map[netip.AddrPort]bool, n)
	for _, list := range lists {
		for _, e := range list {
			out[e.Addr] = true
		}
	}
	return out
}

// Serving returns the set of endpoints that may have flows: those in a list, and
// those that are draining.
func (sp *ServicePort) Serving() map[netip.AddrPort]bool {
	out := AddressesOf(sp.Cluster, sp.Local)
	for _, a := range sp.Draining {
		out[a] = true
	}
	return out
}

// String returns the row as one line, with sorted endpoints.
func (sp *ServicePort) String() string {
	var b strings.Builder
	add := func(present bool, format string, args ...any) {
		if present {
			fmt.Fprintf(&b, format, args...)
		}
	}
	add(true, "%v", sp.Key)
	for _, f := range sp.Frontends {
		add(true, " %v=%v", f.Kind, f.Addr)
	}
	add(true, " internal=%v external=%v anywhere=%t", sp.Internal, sp.External, sp.UsableSomewhere)
	add(true, " cluster=%v local=%v", texts(sp.Cluster), texts(sp.Local))
	add(sp.Balancing != BalanceDefault, " balancing=%v", sp.Balancing)
	add(sp.Affinity > 0, " affinity=%v", sp.Affinity)
	add(sp.AllowFrom != nil, " from=%v", sp.AllowFrom)
	add(sp.HealthCheckPort != 0, " health-check=%d", sp.HealthCheckPort)
	add(sp.PreserveDestination, " preserve-destination")
	add(len(sp.Draining) > 0, " draining=%v", sp.Draining)
	return b.String()
}

// texts returns the endpoints' addresses, sorted, with their weights if they have any.
func texts(list []Endpoint) (out []string) {
	for _, e := range slices.SortedFunc(slices.Values(list), func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) }) {
		text := e.Addr.String()
		if e.Weight != 0 {
			text += fmt.Sprintf("*%d", e.Weight)
		}
		out = append(out, text)
	}
	return out
}

// Verdict is what happens to a packet's connection.
type Verdict uint8

const (
	Untouched Verdict = iota // not for a Service: ordinary routing applies
	Forward                  // forwarded to one of the endpoints
	Reject                   // answered with an error
	Drop                     // dropped without an answer
)

func (v Verdict) String() string { return [...]string{"untouched", "forward", "reject", "drop"}[v] }

// Route is what happens to the packets of one origin to one kind of frontend.
type Route struct {
	Scope      Scope          // which of the row's lists To is
	To         []Endpoint     // the candidates
	Otherwise  Verdict        // Reject or Drop if To is empty
	Masquerade bool           // hide the client's address from the endpoint
	Why        Masquerading   // why Masquerade is set or not
	From       []netip.Prefix // the clients that are allowed, no prefix in another; nil means everyone. Others are dropped
}

// Masquerading is why a client's address is hidden from endpoints, or why it is not.
type Masquerading uint8

// The reasons not to masquerade, then those to masquerade.
const (
	ShownUndetected Masquerading = iota // ClusterIP: without a detector, pods and other clients look the same
	ShownToPods                         // the client is a pod of this node, whose replies pass this node anyway
	ShownLocal                          // externalTrafficPolicy Local preserves the client's address
	HiddenAll                           // ClusterIP: masqueradeAll is set
	HiddenForeign                       // ClusterIP: the client is not a pod of this node
	HiddenCluster                       // externalTrafficPolicy Cluster allows endpoints on other nodes
	HiddenNode                          // the node itself uses an external address, and the endpoint may be on another node
)

func (m Masquerading) String() string {
	return [...]string{
		"no detectLocalMode is set up that distinguishes pods of this node from other clients",
		"the client is a pod of this node, and replies pass this node anyway",
		"externalTrafficPolicy Local keeps it",
		"all traffic to ClusterIPs is masqueraded (masqueradeAll)",
		"the client of the ClusterIP is not a pod of this node, and replies must return through this node",
		"externalTrafficPolicy Cluster may select an endpoint on another node, and replies must return through this node",
		"the node itself uses an external address, and replies must return to it",
	}[m]
}

// Policy is everything that dataplanes may know about policy: a Route for each of
// [Origins].
type Policy [len(Origins)]Route

// Policy returns the routes to frontends of one kind. It is the only place that
// combines traffic policy, short-circuiting, masquerading and source ranges.
// Dataplanes render it; the oracle evaluates it.
//
// ClusterIP traffic follows the internal policy. All other traffic follows the
// external policy, except that pods of this node and the node itself always take the
// Cluster list, as if they had used the ClusterIP. The node's settings determine which
// clients of a ClusterIP are masqueraded.
func (sp *ServicePort) Policy(k Kind, n *Node) Policy {
	var p Policy
	for _, from := range Origins {
		p[from] = sp.route(k, from, n)
	}
	return p
}

// CommonPolicy returns what the Policy of all rows with the same family and external
// scope has in common: which origins are masqueraded.
func CommonPolicy(f Family, k Kind, external Scope, n *Node) Policy {
	return (&ServicePort{Key: PortKey{Family: f}, External: external}).Policy(k, n)
}

func (sp *ServicePort) route(k Kind, from Origin, n *Node) Route {
	var r Route
	switch {
	case k == ClusterIP:
		r.Scope = sp.Internal
		// Without a detector pods and other clients look the same, and masquerading
		// pods would hide their addresses for no reason.
		switch {
		case n.MasqueradeAll:
			r.Why = HiddenAll
		case !n.LocalPods.Detects(sp.Key.Family):
			r.Why = ShownUndetected
		case from == OurPod:
			r.Why = ShownToPods
		default:
			r.Why = HiddenForeign
		}
	case sp.External == ScopeCluster:
		r.Why = HiddenCluster
	case from == Elsewhere:
		r.Scope, r.Why = ScopeLocal, ShownLocal
	case from == ThisNode:
		r.Why = HiddenNode
	default:
		r.Why = ShownToPods
	}
	r.Masquerade = r.Why >= HiddenAll
	if k == LoadBalancer {
		r.From = sp.AllowFrom
	}
	r.To = sp.List(r.Scope)
	if len(r.To) == 0 {
		r.Otherwise = Reject
		if sp.UsableSomewhere {
			r.Otherwise = Drop
		}
	}
	return r
}

func (sp *ServicePort) List(s Scope) []Endpoint {
	return [...][]Endpoint{ScopeCluster: sp.Cluster, ScopeLocal: sp.Local}[s]
}

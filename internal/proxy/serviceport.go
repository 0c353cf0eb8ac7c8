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

// PortKey is a row's identity. The family is part of it, so a dual-stack
// Service is two rows and nothing downstream has to know the word.
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

// Kind says what a frontend address is. Kinds are in order of precedence: when
// two Services claim one address and port, the smaller kind wins.
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

// Frontend is one address and port by which a service port is reached. A
// NodePort frontend has the unspecified address of its family: it stands for
// the node's own addresses that [Node.NodePorts] selects.
type Frontend struct {
	Kind Kind
	Addr netip.AddrPort
}

// Endpoint is one place to send a connection to.
type Endpoint struct {
	Addr        netip.AddrPort
	Local       bool   // on this node
	NodeUnknown bool   // its node is not known; it may be on this one
	Weight      uint16 // 0 counts as 1; see Share
}

// Share returns how many connections the endpoint is to get for each one of an
// endpoint that has no weight.
func (e Endpoint) Share() int { return int(max(e.Weight, 1)) }

// Scope says which list of a service port's endpoints traffic takes.
type Scope uint8

const (
	ScopeCluster Scope = iota
	ScopeLocal
)

func (s Scope) String() string { return [...]string{"Cluster", "Local"}[s] }

// ServicePort is one row of the desired state: readiness, topology and traffic
// policy are already decided. It is immutable once published.
type ServicePort struct {
	Key             PortKey
	Frontends       []Frontend     // no two rows share one, but for NodePort's unspecified address and another's port
	Cluster         []Endpoint     // usable from this node, in stable slots
	Local           []Endpoint     // usable and on this node, in stable slots
	UsableSomewhere bool           // some node has a usable endpoint: Drop when a list is empty, else Reject
	Internal        Scope          // which list ClusterIP traffic takes
	External        Scope          // which list all other traffic takes
	Balancing       Balancing      // how an endpoint is chosen among those of a list
	Affinity        time.Duration  // how long a client is remembered; 0: not at all
	AllowFrom       []netip.Prefix // LoadBalancer clients, sorted, no prefix within another; nil: everyone
	HealthCheckPort uint16         // where load balancers of its LoadBalancer addresses ask about the Service; 0: nowhere

	// PreserveDestination has endpoints see the LoadBalancer address that a client
	// connected to as their own. Only mode kernelspace can do that.
	PreserveDestination bool

	// Draining are endpoints in neither list that still serve, sorted: they get
	// no new connections but keep the flows they have. Only protocols whose
	// stale flows we end have them ([Protocol.EndsStaleFlows]).
	Draining []netip.AddrPort
}

// AddressesOf returns the addresses of the endpoints of lists.
func AddressesOf(lists ...[]Endpoint) map[netip.AddrPort]bool {
	n := 0 // a row's lists have much in common
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

// Serving returns the endpoints that may have flows.
func (sp *ServicePort) Serving() map[netip.AddrPort]bool {
	out := AddressesOf(sp.Cluster, sp.Local)
	for _, a := range sp.Draining {
		out[a] = true
	}
	return out
}

// String returns the row as one line. Endpoints are sorted, not in slots.
func (sp *ServicePort) String() string {
	var b strings.Builder
	add := func(there bool, format string, args ...any) {
		if there {
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

// texts returns the endpoints' addresses, sorted, and the weights that there are.
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
	Untouched Verdict = iota // not ours: ordinary routing applies
	Forward                  // to one of the endpoints
	Reject                   // refused at once
	Drop                     // silence
)

func (v Verdict) String() string { return [...]string{"untouched", "forward", "reject", "drop"}[v] }

// Route is the whole answer for one kind of packet.
type Route struct {
	Scope      Scope          // which of the row's lists To is
	To         []Endpoint     // the candidates
	Otherwise  Verdict        // Reject or Drop, when To is empty
	Masquerade bool           // hide the client's address from the endpoint
	Why        Masquerading   // why Masquerade is what it is
	From       []netip.Prefix // the clients that are let in, no prefix within another; nil: everyone. Others are dropped
}

// Masquerading is why a client's address is hidden from endpoints, or is not.
type Masquerading uint8

// The reasons to show an address, then those to hide it.
const (
	ShownUndetected Masquerading = iota // no client of the ClusterIP can be told apart
	ShownToPods                         // our pods' replies pass this node anyway
	ShownLocal                          // the policy keeps to this node's endpoints for that
	HiddenAll                           // everything for ClusterIPs is hidden
	HiddenForeign                       // a client of the ClusterIP that is none of our pods
	HiddenCluster                       // the policy allows endpoints of other nodes
	HiddenNode                          // the node itself takes endpoints of other nodes, by an outside address
)

func (m Masquerading) String() string {
	return [...]string{
		"no way is set up to tell our pods from other clients",
		"the client is one of our pods, whose replies pass this node",
		"externalTrafficPolicy Local keeps it",
		"all traffic to ClusterIPs is masqueraded (masqueradeAll)",
		"the client of a ClusterIP is not one of our pods, and replies must come back through this node",
		"externalTrafficPolicy Cluster may lead to another node, and replies must come back through this one",
		"the node itself came by an outside address, and replies must come back to it",
	}[m]
}

// Policy is all that a renderer may know of policy: a Route for each of [Origins].
type Policy [len(Origins)]Route

// Policy is the only place where traffic policy, short-circuiting, masquerading
// and source ranges meet. Dataplanes render it; the oracle evaluates it.
//
// ClusterIP traffic follows the internal policy. All other traffic follows the
// external one, but for our own pods and the node itself: they take the
// Cluster list whatever the policy is, as if they had used the ClusterIP. What
// the node has to do with it is whose clients a ClusterIP hides.
func (sp *ServicePort) Policy(k Kind, n *Node) Policy {
	var p Policy
	for _, from := range Origins {
		p[from] = sp.route(k, from, n)
	}
	return p
}

// CommonPolicy is the Policy that all rows of a family have in common which take
// one list for external traffic: whom it masquerades.
func CommonPolicy(f Family, k Kind, external Scope, n *Node) Policy {
	return (&ServicePort{Key: PortKey{Family: f}, External: external}).Policy(k, n)
}

func (sp *ServicePort) route(k Kind, from Origin, n *Node) Route {
	var r Route
	switch {
	case k == ClusterIP:
		r.Scope = sp.Internal
		// Without a detector no client can be told apart, so none is hidden.
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

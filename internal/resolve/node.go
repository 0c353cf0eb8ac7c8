package resolve

import (
	"net/netip"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// Settings are the parts of the configuration that the resolver uses.
type Settings struct {
	NodeName      string         // the name of this node
	NodeExpected  bool           // it is a problem if there is no Node of that name
	Families      []proxy.Family // the families that are served; nil means both
	MasqueradeAll bool

	// LocalPods detects the traffic of this node's pods. Only the first prefix of
	// each family in its Sources, the cluster's pod ranges, is used. If NodeCIDRs is
	// set, the pod ranges of the Node are used instead.
	LocalPods proxy.LocalTrafficDetector
	NodeCIDRs bool

	IgnoreExternalIPs bool              // ignore spec.externalIPs; used by New only
	Allowed           apiobject.Allowed // the addresses that Services may have; used by New only
	Balancing         Balancing         // how endpoints are chosen; used by New only

	NodePortAddresses  NodePortAddresses
	LocalhostNodePorts bool // IPv4 loopback addresses may accept NodePorts
	RelayLoopback      bool // NodePorts are relayed at ::1
	RefuseLoopback     bool // other NodePorts at loopback addresses are refused

	// NodeIPs have precedence over the addresses of the Node, which are used for a
	// family without an address here.
	NodeIPs []netip.Addr
}

// NodePortAddresses selects the node addresses that accept NodePorts. The zero value
// selects every local address.
type NodePortAddresses struct {
	Primary bool           // the primary IPs of the node
	CIDRs   []netip.Prefix // and local addresses in these ranges; without Primary, a family without a range has every local address
}

// serves reports whether a family is served.
func (s *Settings) serves(f proxy.Family) bool {
	return s.Families == nil || slices.Contains(s.Families, f)
}

// served returns the prefixes of the families that are served.
func (s *Settings) served(all []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return !s.serves(proxy.FamilyOf(p.Addr())) })
}

// node returns the node for a parsed Node object, and problems with the configuration.
func (s *Settings) node(in apiobject.Node) (*proxy.Node, []Problem) {
	n := &proxy.Node{
		Name:          s.NodeName,
		Zone:          in.Zone,
		IPs:           s.nodeIPs(in),
		LocalPods:     s.localPods(in),
		MasqueradeAll: s.MasqueradeAll,

		LocalhostNodePorts: s.LocalhostNodePorts,
		RelaysLoopback:     s.RelayLoopback && s.serves(proxy.IPv6),
		RefusesLoopback:    s.RefuseLoopback,
	}
	var problems []Problem
	n.NodePorts, problems = s.nodePorts(n.IPs)
	return n, append(problems, s.undetectedPods(n)...)
}

// undetectedPods returns a problem for each family whose pods cannot be detected
// although a detector is configured.
func (s *Settings) undetectedPods(n *proxy.Node) []Problem {
	var problems []Problem
	for _, f := range proxy.Families {
		switch {
		case !s.serves(f) || n.LocalPods.Detects(f):
		case s.NodeCIDRs:
			problems = append(problems, configuration.problem("detectLocalMode",
				"the Node has no %v pod CIDR yet: its %v pods cannot be distinguished from other clients", f, f))
		case len(s.LocalPods.Sources) > 0 && len(s.served(s.LocalPods.Sources)) == 0:
			problems = append(problems, configuration.problem("clusterCIDR",
				"none is of a family that this node serves: pods cannot be distinguished from other clients"))
		}
	}
	return problems
}

// nodeIPs returns the first address of each family; the first of all comes first.
func (s *Settings) nodeIPs(in apiobject.Node) []netip.Addr {
	var ips []netip.Addr
	for _, ip := range slices.Concat(s.NodeIPs, in.IPs) {
		ip = ip.Unmap()
		if ip.IsValid() && !ip.IsUnspecified() && !proxy.AddrOf(ips, proxy.FamilyOf(ip)).IsValid() {
			ips = append(ips, ip)
		}
	}
	return ips
}

// localPods returns the detector with the first source prefix of each served family.
func (s *Settings) localPods(in apiobject.Node) proxy.LocalTrafficDetector {
	d, sources := s.LocalPods, s.LocalPods.Sources
	if s.NodeCIDRs {
		sources = in.PodCIDRs
	}
	d.Sources = nil
	for _, f := range proxy.Families {
		if of := proxy.PrefixesOf(s.served(sources), f); len(of) > 0 {
			d.Sources = append(d.Sources, of[0].Masked())
		}
	}
	return d
}

// nodePorts returns the ranges whose local addresses accept NodePorts.
func (s *Settings) nodePorts(ips []netip.Addr) ([]netip.Prefix, []Problem) {
	var out []netip.Prefix
	var problems []Problem
	if s.NodePortAddresses.Primary && len(ips) == 0 {
		problems = append(problems, configuration.problem("nodePortAddresses",
			"no address of Node %s is known: NodePorts are closed on its primary addresses", s.NodeName))
	}
	for _, f := range proxy.Families {
		ip, cidrs := proxy.AddrOf(ips, f), proxy.PrefixesOf(s.NodePortAddresses.CIDRs, f)
		if s.NodePortAddresses.Primary && ip.IsValid() {
			out = append(out, netip.PrefixFrom(ip, f.Bits()))
		}
		// If the node has no primary address of a family, opening NodePorts on all its
		// addresses would be the opposite of what Primary means.
		if len(cidrs) == 0 && !s.NodePortAddresses.Primary {
			out = append(out, netip.PrefixFrom(f.Unspecified(), 0))
		}
		out = append(out, cidrs...)
	}
	out = slices.DeleteFunc(s.served(out), func(p netip.Prefix) bool {
		switch {
		case !loopbackOnly(p), s.LocalhostNodePorts && p.Addr().Is4():
			return false
		case s.RelayLoopback && p.Addr().Is6():
			return true
		}
		problems = append(problems, configuration.problem("nodePortAddresses",
			"%v has only loopback addresses, which do not accept NodePorts", p))
		return true
	})
	return proxy.Outermost(out), problems
}

func loopbackOnly(p netip.Prefix) bool {
	loopback := proxy.FamilyOf(p.Addr()).Loopback()
	return p.Bits() >= loopback.Bits() && loopback.Contains(p.Addr())
}

// UpdateNode handles an event of a Node, and reports whether a change of this node is
// pending. Nil means that the Node was deleted: what is known stays in force, since
// this process, and so the node, still runs. Nodes with other names are ignored.
func (r *Resolver) UpdateNode(n *v1.Node) bool {
	if n == nil || n.Name != r.settings.NodeName {
		return r.nodePending
	}
	appeared := r.settings.NodeExpected && !r.nodeKnown
	r.nodeKnown = true
	o := clusterObject("Node", r.settings.NodeName)
	in, problems := apiobject.ParseNode(n)
	r.nodeParsed, r.nodeProblems = in, o.problems(problems)
	now, _ := r.settings.node(in)
	r.nodePending = !r.updated || appeared || !reflect.DeepEqual(now, r.state.Node) || !slices.Equal(r.nodeProblems, r.parseProblems[o])
	return r.nodePending
}

// applyNode adds a pending change of the Node to a step. If rows depend on what
// changed, all entries become dirty.
func (r *Resolver) applyNode(d *proxy.Delta, dirty map[*entry]bool) {
	if !r.nodePending {
		return
	}
	r.nodePending = false
	node, problems := r.settings.node(r.nodeParsed)
	if r.settings.NodeExpected && !r.nodeKnown {
		problems = append(problems, configuration.problem("hostnameOverride",
			"there is no Node %s: no endpoint counts as local, its zone and addresses are unknown", r.settings.NodeName))
	}
	r.problems.replace(r.parseProblems, configuration, problems)
	r.problems.replace(r.parseProblems, clusterObject("Node", r.settings.NodeName), r.nodeProblems)
	was := r.state.Node
	if reflect.DeepEqual(node, was) {
		return
	}
	d.Node = node
	r.node = node
	if node.Zone == was.Zone && slices.Equal(node.IPs, was.IPs) {
		return
	}
	for _, e := range r.entries {
		dirty[e] = true
	}
}

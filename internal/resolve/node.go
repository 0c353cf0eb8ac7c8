package resolve

import (
	"net/netip"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/apiobject"
	"sluice/internal/proxy"
)

// Settings are what the resolver knows from the configuration.
type Settings struct {
	NodeName      string         // the name of this node
	NodeExpected  bool           // there must be a Node of that name: a cluster has one
	Families      []proxy.Family // which families are served; nil: both
	MasqueradeAll bool

	// LocalPods recognises the traffic of our pods: of Sources, the cluster's pod
	// ranges, the first of each family counts. NodeCIDRs takes this Node's instead.
	LocalPods proxy.LocalTrafficDetector
	NodeCIDRs bool

	IgnoreExternalIPs bool              // Services are not reached by spec.externalIPs; for New only
	Allowed           apiobject.Allowed // the addresses that Services may have; for New only
	Balancing         Balancing         // how endpoints are chosen; for New only

	NodePortAddresses  NodePortAddresses
	LocalhostNodePorts bool // IPv4 loopback addresses may take NodePorts

	// NodeIPs come before the Node's own addresses. A family without one here
	// still has the Node's.
	NodeIPs []netip.Addr
}

// NodePortAddresses selects the node addresses that take NodePorts. The zero
// value is every local address.
type NodePortAddresses struct {
	Primary bool           // the node's own primary IPs
	CIDRs   []netip.Prefix // and addresses within; a family without any, unless Primary: every local address of it
}

// serves reports whether a family gets rows.
func (s *Settings) serves(f proxy.Family) bool {
	return s.Families == nil || slices.Contains(s.Families, f)
}

// served returns the prefixes of the families that get rows.
func (s *Settings) served(all []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return !s.serves(proxy.FamilyOf(p.Addr())) })
}

// node returns the node as policy sees it.
func (s *Settings) node(in apiobject.Node) (*proxy.Node, []Problem) {
	n := &proxy.Node{
		Name:          s.NodeName,
		Zone:          in.Zone,
		IPs:           s.nodeIPs(in),
		LocalPods:     s.localPods(in),
		MasqueradeAll: s.MasqueradeAll,

		LocalhostNodePorts: s.LocalhostNodePorts,
	}
	var problems []Problem
	n.NodePorts, problems = s.nodePorts(n.IPs)
	return n, append(problems, s.undetected(n)...)
}

// undetected names the families whose pods cannot be recognised though there is
// a way set up to recognise pods.
func (s *Settings) undetected(n *proxy.Node) []Problem {
	var problems []Problem
	for _, f := range proxy.Families {
		switch {
		case !s.serves(f) || n.LocalPods.Detects(f):
		case s.NodeCIDRs:
			problems = append(problems, configuration.problem("detectLocalMode",
				"the Node has no %v pod CIDR yet: its %v pods cannot be told from other clients", f, f))
		case len(s.LocalPods.Sources) > 0 && len(s.served(s.LocalPods.Sources)) == 0:
			problems = append(problems, configuration.problem("clusterCIDR",
				"none is of a family that this node serves: pods cannot be told from other clients"))
		}
	}
	return problems
}

// nodeIPs returns the first address, and the first of the other family.
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

// localPods takes the first source prefix of each family that is served.
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

// nodePorts returns the ranges whose local addresses take NodePorts.
func (s *Settings) nodePorts(ips []netip.Addr) ([]netip.Prefix, []Problem) {
	var out []netip.Prefix
	var problems []Problem
	if s.NodePortAddresses.Primary && len(ips) == 0 {
		problems = append(problems, configuration.problem("nodePortAddresses",
			"no Node %s with an address is known: NodePorts are closed on its own addresses", s.NodeName))
	}
	for _, f := range proxy.Families {
		ip, cidrs := proxy.AddrOf(ips, f), proxy.PrefixesOf(s.NodePortAddresses.CIDRs, f)
		if s.NodePortAddresses.Primary && ip.IsValid() {
			out = append(out, netip.PrefixFrom(ip, f.Bits()))
		}
		// Opening all addresses of a family because the node has none of its
		// own would be the opposite of what primary asks for.
		if len(cidrs) == 0 && !s.NodePortAddresses.Primary {
			out = append(out, netip.PrefixFrom(f.Unspecified(), 0))
		}
		out = append(out, cidrs...)
	}
	out = slices.DeleteFunc(s.served(out), func(p netip.Prefix) bool {
		if !loopbackOnly(p) || s.LocalhostNodePorts && p.Addr().Is4() {
			return false
		}
		problems = append(problems, configuration.problem("nodePortAddresses",
			"%v has loopback addresses only, which take no NodePorts", p))
		return true
	})
	return proxy.Outermost(out), problems
}

func loopbackOnly(p netip.Prefix) bool {
	loopback := proxy.FamilyOf(p.Addr()).Loopback()
	return p.Bits() >= loopback.Bits() && loopback.Contains(p.Addr())
}

// UpdateNode notes what the Node is now, and reports whether a change of it is
// pending. Nil says that it was deleted: what is known stays in force, as the
// node evidently still runs. Nodes of another name are none of ours.
func (r *Resolver) UpdateNode(n *v1.Node) bool {
	if n == nil || n.Name != r.settings.NodeName {
		return r.nodePending
	}
	came := r.settings.NodeExpected && !r.nodeKnown
	r.nodeKnown = true
	o := clusterObject("Node", r.settings.NodeName)
	in, problems := apiobject.ParseNode(n)
	r.nodeRead, r.nodeProblems = in, o.problems(problems)
	now, _ := r.settings.node(in)
	r.nodePending = r.first || came || !reflect.DeepEqual(now, r.state.Node) || !slices.Equal(r.nodeProblems, r.read[o])
	return r.nodePending
}

// applyNode makes the pending Node the state's, in a step. Rows that depend on
// what changed become dirty.
func (r *Resolver) applyNode(d *proxy.Delta, dirty map[*entry]bool) {
	if !r.nodePending {
		return
	}
	r.nodePending = false
	node, problems := r.settings.node(r.nodeRead)
	if r.settings.NodeExpected && !r.nodeKnown {
		problems = append(problems, configuration.problem("hostnameOverride",
			"there is no Node %s: no endpoint counts as this node's, its zone and addresses are unknown", r.settings.NodeName))
	}
	r.problems.replace(r.read, configuration, problems)
	r.problems.replace(r.read, clusterObject("Node", r.settings.NodeName), r.nodeProblems)
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

package iptables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// The chains that rows share. See rowsFirst for the order of their rules.
var (
	dispatch       = chainRef{nat, kubeServices}
	dispatchPort   = chainRef{nat, kubeNodePorts}
	emptyClusterIP = chainRef{filter, kubeServices}
	emptyExternal  = chainRef{filter, kubeExternal}
	restricted     = chainRef{filter, kubeFirewall}
	nodePortFilter = chainRef{filter, kubeNodePorts}
	clusterIPs     = chainRef{filter, kubeAddresses}
)

var sharedChains = []chainRef{dispatch, dispatchPort, emptyClusterIP, emptyExternal, restricted, nodePortFilter, clusterIPs}

// rowsFirst reports whether the rules of rows come before the constant rules of a
// chain.
func (p chainRef) rowsFirst() bool { return p == dispatch || p == emptyClusterIP }

// nodeMatches is what the rules of one family depend on of the node.
type nodeMatches struct {
	family    proxy.Family
	node      *proxy.Node
	pods      []string   // matches for traffic of local pods
	clusterIP treatments // which clients of a ClusterIP are masqueraded
	nodePorts []string   // matches for addresses that serve NodePorts
	resetTCP  bool       // refuse TCP connections by a reset
}

// matches returns the nodeMatches of a node. It remembers those of two nodes.
func (f *family) matches(n *proxy.Node) *nodeMatches {
	for _, m := range f.recentMatches {
		if m != nil && m.node == n {
			return m
		}
	}
	m := newNodeMatches(f.Family, n)
	m.resetTCP = f.resetTCP
	f.recentMatches = [2]*nodeMatches{m, f.recentMatches[0]}
	return m
}

func newNodeMatches(f proxy.Family, n *proxy.Node) *nodeMatches {
	m := &nodeMatches{family: f, node: n}
	for _, p := range proxy.PrefixesOf(n.LocalPods.Sources, f) {
		m.pods = append(m.pods, from(p))
	}
	if name := n.LocalPods.Interface; name != "" {
		if n.LocalPods.IsPrefix {
			name += "+"
		}
		m.pods = append(m.pods, "-i "+name+" ")
	}
	// Which clients of a ClusterIP are masqueraded depends on the node only: it is the
	// same for any row.
	anyRow := &proxy.ServicePort{Key: proxy.PortKey{Family: f}}
	for origin, route := range anyRow.Policy(proxy.ClusterIP, n) {
		m.clusterIP[origin].mark = route.Masquerade
	}
	within, except := n.NodePortAddresses(f)
	for _, p := range within {
		m.nodePorts = append(m.nodePorts, destinations(p, except)...)
	}
	return m
}

// same reports whether all rows have the same rules on both nodes.
func (m *nodeMatches) same(o *nodeMatches) bool {
	return m.clusterIP == o.clusterIP && slices.Equal(m.pods, o.pods) && slices.Equal(m.nodePorts, o.nodePorts)
}

// destinations returns matches that together cover a prefix without the exceptions.
func destinations(p netip.Prefix, except []netip.Prefix) []string {
	i := slices.IndexFunc(except, p.Overlaps)
	switch {
	case i < 0:
		return []string{to(p)}
	case p.Bits() >= except[i].Bits():
		return nil
	case p.Bits() == 0 && len(except) == 1:
		return []string{"! " + to(except[i])}
	}
	low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	b := p.Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	middle, _ := netip.AddrFromSlice(b)
	return append(destinations(low, except), destinations(netip.PrefixFrom(middle, p.Bits()+1), except)...)
}

// from and to return a match for the addresses of a prefix; empty if that is every
// address.
func from(p netip.Prefix) string { return addressMatch("-s", p) }
func to(p netip.Prefix) string   { return addressMatch("-d", p) }

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func addressMatch(option string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return fmt.Sprintf("%s %s/%d ", option, formatAddr(p.Masked().Addr()), p.Bits())
}

// formatAddr formats an address as iptables-save prints it, which is as inet_ntop of
// glibc does: if only the first six groups are zero, the end is written as an IPv4
// address.
func formatAddr(a netip.Addr) string {
	b := a.As16()
	if a.Is6() && [12]byte(b[:]) == [12]byte{} && (b[12] != 0 || b[13] != 0) {
		return "::" + netip.AddrFrom4([4]byte(b[12:])).String()
	}
	return a.String()
}

const (
	newFlow   = "-m conntrack --ctstate NEW "
	toLocal   = "-m addrtype --dst-type LOCAL "
	fromLocal = "-m addrtype --src-type LOCAL "
)

func (m *nodeMatches) reject() string {
	return "-j REJECT --reject-with " + [...]string{"icmp", "icmp6"}[m.family] + "-port-unreachable"
}

func (d *Dataplane) constant(want *proxy.State, add func(id, value)) {
	for _, f := range d.families {
		for p, rules := range d.constants(f, want) {
			add(id{f: f, chainRef: p}, value{rules: rules})
		}
	}
}

// constants returns the rules that do not depend on rows, by chain. It has all chains
// that rows share, most of them without a rule.
func (d *Dataplane) constants(f *family, want *proxy.State) map[chainRef][]string {
	m := f.matches(want.Node)
	bit := fmt.Sprintf("%#x", uint32(1)<<d.settings.MasqueradeBit)
	out := map[chainRef][]string{
		{nat, kubeMark}: {"-j MARK --set-xmark " + bit + "/" + bit},
		{nat, kubePost}: {
			"-m mark ! --mark " + bit + "/" + bit + " -j RETURN",
			"-j MARK --set-xmark " + bit + "/0x0",
			comment("kubernetes service traffic requiring SNAT") + "-j MASQUERADE --random-fully",
		},
		{nat, kubeMarkOther}: m.byOrigin(m.clusterIP, ""),
		{filter, kubeForward}: {
			comment("kubernetes forwarding rules") + "-m mark --mark " + bit + "/" + bit + " -j ACCEPT",
			comment("kubernetes forwarding conntrack rule") + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		},
		{filter, kubeCanary}: nil, {nat, kubeCanary}: nil, {mangle, kubeCanary}: nil,
	}
	if !d.liberal {
		out[chainRef{filter, kubeForward}] = slices.Insert(out[chainRef{filter, kubeForward}], 0, "-m conntrack --ctstate INVALID "+comment(invalidDropped.comment)+"-j DROP")
	}
	if f.Family == proxy.IPv4 && want.Node.OpensLoopback() { // a rule without a target, for its counter
		out[chainRef{nat, kubePost}] = slices.Insert(out[chainRef{nat, kubePost}], 1,
			comment(localhostAccepted.comment)+"-m conntrack --ctstate DNAT --ctorigdst 127.0.0.0/8")
	}
	for _, p := range sharedChains {
		out[p] = nil
	}
	for _, match := range m.nodePorts {
		out[dispatch] = append(out[dispatch], match+
			comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")+toLocal+"-j "+kubeNodePorts)
	}
	if f.Family == proxy.IPv4 && want.Node.OpensLoopback() {
		// The loopback guard accepts translated packets, so those of other hosts must not be
		// translated. In PREROUTING a packet has no outgoing link yet, so "! -o lo" matches it.
		out[dispatchPort] = []string{"-d 127.0.0.0/8 ! -o lo " + comment("loopback is not for others") + "-j RETURN"}
	}
	if f.Family == proxy.IPv4 && d.guard.InForce {
		out[nodePortFilter] = []string{loopbackGuard(d.guard)}
	}
	maps.Copy(out, jumps)
	out[emptyClusterIP] = clusterIPRules(proxy.PrefixesOf(want.CIDRs, f.Family))
	return out
}

// treatment is what rules do with packets of one origin.
type treatment struct {
	mark bool   // for masquerade
	next string // the chain to jump to; empty to return
}

// treatments has a treatment for each of [proxy.Origins].
type treatments [len(proxy.Origins)]treatment

// byOrigin returns the rules that treat packets by their origin. Text is the end of
// their comments; if it is empty, they have none.
func (m *nodeMatches) byOrigin(do treatments, text string) []string {
	var rules []string
	commentFor := func(what string) string {
		if text == "" || what == "" {
			return ""
		}
		return comment(what + text)
	}
	add := func(source, kind string, t treatment, marked, sent string) {
		if t.mark {
			rules = append(rules, source+commentFor(marked)+kind+"-j "+kubeMark)
		}
		switch {
		case t.next != "":
			rules = append(rules, source+commentFor(sent)+kind+"-j "+t.next)
		case source+kind != "":
			rules = append(rules, source+kind+"-j RETURN")
		}
	}
	pod, node, other := do[proxy.OurPod], do[proxy.ThisNode], do[proxy.Elsewhere]
	if pod != node || pod != other {
		for _, source := range m.pods {
			add(source, "", pod, "masquerade pod traffic", "pod traffic")
		}
	}
	if node != other {
		add("", fromLocal, node, "masquerade LOCAL traffic", "route LOCAL traffic")
	}
	add("", "", other, "masquerade traffic", "")
	return rules
}

// clusterIPRules returns the constant rules of KUBE-SERVICES in table filter. They send
// packets of the node itself to the chain for external frontends; other packets get
// there from INPUT and FORWARD. Then they reject other ports of ClusterIPs, and drop
// packets to addresses that no Service has. If the ServiceCIDRs are known, other
// traffic does not have to pass the rules of all ClusterIPs. Packets to a socket of
// mode userspace are not translated and must not be refused.
func clusterIPRules(cidrs []netip.Prefix) []string {
	rules := []string{fromLocal + "-j " + kubeExternal, fmt.Sprintf("-m mark --mark %#x/%#[1]x -j RETURN", mode.SocketMark)}
	if len(cidrs) == 0 {
		return append(rules, "-j "+kubeAddresses)
	}
	for _, p := range cidrs {
		rules = append(rules, to(p)+"-j "+kubeAddresses, to(p)+comment("no Service has this address")+"-j DROP")
	}
	return rules
}

// The jumps from built-in chains, which put all other rules into effect.
var (
	toExternal       = newFlow + comment("kubernetes externally-visible service portals") + "-j " + kubeExternal
	toServices       = newFlow + comment("kubernetes service portals") + "-j " + kubeServices
	toFirewall       = newFlow + comment("kubernetes load balancer firewall") + "-j " + kubeFirewall
	toNodePortFilter = comment("kubernetes health check service ports") + "-j " + kubeNodePorts
	toForward        = comment("kubernetes forwarding rules") + "-j " + kubeForward
	toServicesNAT    = comment("kubernetes service portals") + "-j " + kubeServices
	toPostrouting    = comment("kubernetes postrouting rules") + "-j " + kubePost
)

// jumps has them by chain, in order. They are exactly those of kube-proxy, so that its
// clean-up removes them, too.
var jumps = map[chainRef][]string{
	{filter, "INPUT"}:    {toExternal, toFirewall, toNodePortFilter},
	{filter, "FORWARD"}:  {toExternal, toServices, toFirewall, toForward},
	{filter, "OUTPUT"}:   {toServices, toFirewall},
	{nat, "PREROUTING"}:  {toServicesNAT},
	{nat, "OUTPUT"}:      {toServicesNAT},
	{nat, "POSTROUTING"}: {toPostrouting},
}

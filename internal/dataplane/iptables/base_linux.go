package iptables

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// The chains that rows share. Rules of rows come first in those whose constant
// rules must be last, and last in the others.
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

// rowsFirst reports whether rules of rows come before the constant ones.
func (p chainRef) rowsFirst() bool { return p == dispatch || p == emptyClusterIP }

// nodeMatches is what rules of one family have to know of the node.
type nodeMatches struct {
	family      proxy.Family
	node        *proxy.Node
	pods        []string   // matches for our pods' traffic
	ofClusterIP treatments // which clients a ClusterIP hides
	nodePorts   []string   // matches for addresses that take NodePorts
	resetTCP    bool       // refuse TCP by a reset
}

func (f *family) matches(n *proxy.Node) *nodeMatches {
	for _, v := range f.nodes {
		if v != nil && v.node == n {
			return v
		}
	}
	v := newNodeMatches(f.Family, n)
	v.resetTCP = f.resetTCP
	f.nodes = [2]*nodeMatches{v, f.nodes[0]}
	return v
}

func newNodeMatches(f proxy.Family, n *proxy.Node) *nodeMatches {
	v := &nodeMatches{family: f, node: n}
	for _, p := range proxy.PrefixesOf(n.LocalPods.Sources, f) {
		v.pods = append(v.pods, from(p))
	}
	if name := n.LocalPods.Interface; name != "" {
		if n.LocalPods.IsPrefix {
			name += "+"
		}
		v.pods = append(v.pods, "-i "+name+" ")
	}
	// Whom a ClusterIP hides depends on the node alone: any row tells.
	anyRow := &proxy.ServicePort{Key: proxy.PortKey{Family: f}}
	for origin, route := range anyRow.Policy(proxy.ClusterIP, n) {
		v.ofClusterIP[origin].mark = route.Masquerade
	}
	within, except := n.NodePortAddresses(f)
	for _, p := range within {
		v.nodePorts = append(v.nodePorts, destinations(p, except)...)
	}
	return v
}

// same reports whether rows have the same rules on two nodes.
func (v *nodeMatches) same(o *nodeMatches) bool {
	return v.ofClusterIP == o.ofClusterIP && slices.Equal(v.pods, o.pods) && slices.Equal(v.nodePorts, o.nodePorts)
}

// destinations returns matches for the addresses of a prefix, except some.
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

// from and to match addresses; every address needs no match.
func from(p netip.Prefix) string { return address("-s", p) }
func to(p netip.Prefix) string   { return address("-d", p) }

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func address(option string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return fmt.Sprintf("%s %s/%d ", option, printed(p.Masked().Addr()), p.Bits())
}

// printed returns an address as iptables-save prints it, which is as inet_ntop of glibc
// does: the end of one whose first six groups alone are zero is that of IPv4.
func printed(a netip.Addr) string {
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

func (v *nodeMatches) reject() string {
	return "-j REJECT --reject-with " + [...]string{"icmp", "icmp6"}[v.family] + "-port-unreachable"
}

func (d *Dataplane) constant(want *proxy.State, add func(id, value)) {
	for _, f := range d.families {
		for p, rules := range d.constants(f, want) {
			add(id{f: f, chainRef: p}, value{rules: rules})
		}
	}
}

// constants returns the rules that do not depend on rows, by chain. The chains
// that rows share are among them, most of them without any rule.
func (d *Dataplane) constants(f *family, want *proxy.State) map[chainRef][]string {
	v := f.matches(want.Node)
	bit := fmt.Sprintf("%#x", uint32(1)<<d.settings.MasqueradeBit)
	out := map[chainRef][]string{
		{nat, kubeMark}: {"-j MARK --set-xmark " + bit + "/" + bit},
		{nat, kubePost}: {
			"-m mark ! --mark " + bit + "/" + bit + " -j RETURN",
			"-j MARK --set-xmark " + bit + "/0x0",
			comment("kubernetes service traffic requiring SNAT") + "-j MASQUERADE --random-fully",
		},
		{nat, kubeMarkOther}: v.byOrigin(v.ofClusterIP, ""),
		{filter, kubeForward}: {
			comment("kubernetes forwarding rules") + "-m mark --mark " + bit + "/" + bit + " -j ACCEPT",
			comment("kubernetes forwarding conntrack rule") + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		},
		{filter, kubeCanary}: nil, {nat, kubeCanary}: nil, {mangle, kubeCanary}: nil,
	}
	if !d.liberal {
		out[chainRef{filter, kubeForward}] = slices.Insert(out[chainRef{filter, kubeForward}], 0, "-m conntrack --ctstate INVALID "+comment(invalidDropped.comment)+"-j DROP")
	}
	if f.Family == proxy.IPv4 && want.Node.OpensLoopback() { // this one only counts
		out[chainRef{nat, kubePost}] = slices.Insert(out[chainRef{nat, kubePost}], 1,
			comment(localhostAccepted.comment)+"-m conntrack --ctstate DNAT --ctorigdst 127.0.0.0/8")
	}
	for _, p := range sharedChains {
		out[p] = nil
	}
	for _, match := range v.nodePorts {
		out[dispatch] = append(out[dispatch], match+
			comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")+toLocal+"-j "+kubeNodePorts)
	}
	if f.Family == proxy.IPv4 && want.Node.OpensLoopback() {
		// The guard lets pass what is translated. What comes in has no link yet that it goes out by.
		out[dispatchPort] = []string{"-d 127.0.0.0/8 ! -o lo " + comment("loopback is not for others") + "-j RETURN"}
	}
	if f.Family == proxy.IPv4 && d.guard.InForce {
		out[nodePortFilter] = []string{loopbackGuard(d.guard)}
	}
	maps.Copy(out, jumps)
	out[emptyClusterIP] = unanswered(proxy.PrefixesOf(want.CIDRs, f.Family))
	return out
}

// treatment is what is done with packets of one origin.
type treatment struct {
	mark bool   // for masquerade
	next string // the chain that they go on to; empty: back
}

// treatments are those of each of [proxy.Origins].
type treatments [len(proxy.Origins)]treatment

// byOrigin returns the rules that treat each origin as it should be. Their
// comments end with a text; without one there are none.
func (v *nodeMatches) byOrigin(do treatments, text string) []string {
	var rules []string
	say := func(what string) string {
		if text == "" || what == "" {
			return ""
		}
		return comment(what + text)
	}
	add := func(source, kind string, t treatment, marked, sent string) {
		if t.mark {
			rules = append(rules, source+say(marked)+kind+"-j "+kubeMark)
		}
		switch {
		case t.next != "":
			rules = append(rules, source+say(sent)+kind+"-j "+t.next)
		case source+kind != "":
			rules = append(rules, source+kind+"-j RETURN")
		}
	}
	pod, node, other := do[proxy.OurPod], do[proxy.ThisNode], do[proxy.Elsewhere]
	if pod != node || pod != other {
		for _, source := range v.pods {
			add(source, "", pod, "masquerade pod traffic", "pod traffic")
		}
	}
	if node != other {
		add("", fromLocal, node, "masquerade LOCAL traffic", "route LOCAL traffic")
	}
	add("", "", other, "masquerade traffic", "")
	return rules
}

// unanswered takes the node's own packets past the external frontends, which
// those of others come by on their way. Then it refuses other ports of
// ClusterIPs, and is silent for addresses that no Service has. Where the ranges
// are known, other traffic is spared the walk through all ClusterIPs. Nobody
// translates what goes to a socket of mode userspace.
func unanswered(cidrs []netip.Prefix) []string {
	rules := []string{fromLocal + "-j " + kubeExternal, fmt.Sprintf("-m mark --mark %#x/%#[1]x -j RETURN", mode.SocketMark)}
	if len(cidrs) == 0 {
		return append(rules, "-j "+kubeAddresses)
	}
	for _, p := range cidrs {
		rules = append(rules, to(p)+"-j "+kubeAddresses, to(p)+comment("no Service has this address")+"-j DROP")
	}
	return rules
}

// The rules that make everything else live.
var (
	toExternal       = newFlow + comment("kubernetes externally-visible service portals") + "-j " + kubeExternal
	toServices       = newFlow + comment("kubernetes service portals") + "-j " + kubeServices
	toFirewall       = newFlow + comment("kubernetes load balancer firewall") + "-j " + kubeFirewall
	toNodePortFilter = comment("kubernetes health check service ports") + "-j " + kubeNodePorts
	toForward        = comment("kubernetes forwarding rules") + "-j " + kubeForward
	toServicesNAT    = comment("kubernetes service portals") + "-j " + kubeServices
	toPostrouting    = comment("kubernetes postrouting rules") + "-j " + kubePost
)

// jumps has them by chain, in order. They are kube-proxy's, none more: it can
// unlink us.
var jumps = map[chainRef][]string{
	{filter, "INPUT"}:    {toExternal, toFirewall, toNodePortFilter},
	{filter, "FORWARD"}:  {toExternal, toServices, toFirewall, toForward},
	{filter, "OUTPUT"}:   {toServices, toFirewall},
	{nat, "PREROUTING"}:  {toServicesNAT},
	{nat, "OUTPUT"}:      {toServicesNAT},
	{nat, "POSTROUTING"}: {toPostrouting},
}

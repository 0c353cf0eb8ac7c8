package iptables

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/proxy"
)

// place is where a chain that rows share keeps their rules.
type place struct {
	table, chain string
}

// The chains that rows share. Rules of rows come first in those whose constant
// rules must be last, and last in the others.
var (
	dispatch       = place{nat, kubeServices}
	dispatchPort   = place{nat, kubeNodePorts}
	emptyClusterIP = place{filter, kubeServices}
	emptyExternal  = place{filter, kubeExternal}
	restricted     = place{filter, kubeFirewall}
	nodePortFilter = place{filter, kubeNodePorts}
	clusterIPs     = place{filter, kubeAddresses}
)

// places returns all of them.
func places() []place {
	return []place{dispatch, dispatchPort, emptyClusterIP, emptyExternal, restricted, nodePortFilter, clusterIPs}
}

// first reports whether rules of rows come before the constant ones.
func (p place) first() bool { return p == dispatch || p == emptyClusterIP }

// view is what rules of one family have to know of the node.
type view struct {
	family    proxy.Family
	pods      []string // matches for our pods' traffic
	detects   bool
	all       bool     // masquerade all ClusterIP traffic
	nodePorts []string // matches for addresses that take NodePorts
	localhost bool
	guard     localnet.Guard
	cidrs     []string // matches for the ServiceCIDRs
}

func newView(f *family, n *proxy.Node, cidrs []netip.Prefix, guard localnet.Guard) *view {
	v := &view{family: f.Family, all: n.MasqueradeAll, detects: n.LocalPods.Detects(f.Family), localhost: n.OpensLoopback() && f.Family == proxy.IPv4}
	if f.Family == proxy.IPv4 {
		v.guard = guard
	}
	for _, p := range n.LocalPods.SourcesOf(f.Family) {
		v.pods = append(v.pods, from(p))
	}
	if name := n.LocalPods.Interface; name != "" {
		if n.LocalPods.IsPrefix {
			name += "+"
		}
		v.pods = append(v.pods, "-i "+name+" ")
	}
	for _, p := range proxy.PrefixesOf(n.NodePorts, f.Family) {
		v.nodePorts = append(v.nodePorts, v.destinations(p)...)
	}
	for _, p := range proxy.PrefixesOf(cidrs, f.Family) {
		v.cidrs = append(v.cidrs, to(p))
	}
	return v
}

// same reports whether two views make the same rules.
func (v *view) same(o *view) bool {
	return v.detects == o.detects && v.all == o.all && v.localhost == o.localhost && v.guard == o.guard &&
		slices.Equal(v.pods, o.pods) && slices.Equal(v.nodePorts, o.nodePorts) && slices.Equal(v.cidrs, o.cidrs)
}

// destinations returns matches for the addresses of a prefix, without loopback
// unless that takes NodePorts.
func (v *view) destinations(p netip.Prefix) []string {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if v.family == proxy.IPv6 {
		loopback = netip.MustParsePrefix("::1/128")
	}
	switch {
	case v.localhost || !p.Overlaps(loopback):
		return []string{to(p)}
	case p.Bits() >= loopback.Bits():
		return nil
	case p.Bits() == 0:
		return []string{"! " + to(loopback)}
	}
	low := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	b := p.Addr().AsSlice()
	b[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	middle, _ := netip.AddrFromSlice(b)
	return append(v.destinations(low), v.destinations(netip.PrefixFrom(middle, p.Bits()+1))...)
}

// from and to match addresses; every address needs no match.
func from(p netip.Prefix) string { return address("-s", p) }
func to(p netip.Prefix) string   { return address("-d", p) }

func address(option string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return option + " " + p.Masked().String() + " "
}

const (
	newFlow   = "-m conntrack --ctstate NEW "
	toLocal   = "-m addrtype --dst-type LOCAL "
	fromLocal = "-m addrtype --src-type LOCAL "
)

// reject refuses at once.
func (v *view) reject() string {
	if v.family == proxy.IPv6 {
		return "-j REJECT --reject-with icmp6-port-unreachable"
	}
	return "-j REJECT --reject-with icmp-port-unreachable"
}

// constants returns the rules that do not depend on rows, by table and chain.
// The chains that rows share are among them, most of them without any rule.
func (d *Dataplane) constants(v *view) map[place][]string {
	bit := fmt.Sprintf("%#x", uint32(1)<<d.settings.MarkBit)
	out := map[place][]string{
		{nat, kubeMark}: {"-j MARK --set-xmark " + bit + "/" + bit},
		{nat, kubePost}: {
			"-m mark ! --mark " + bit + "/" + bit + " -j RETURN",
			"-j MARK --set-xmark " + bit + "/0x0",
			comment("kubernetes service traffic requiring SNAT") + "-j MASQUERADE --random-fully",
		},
		{nat, kubeMarkOther}: v.markOther(),
		{filter, kubeForward}: {
			comment("kubernetes forwarding rules") + "-m mark --mark " + bit + "/" + bit + " -j ACCEPT",
			comment("kubernetes forwarding conntrack rule") + "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		},
		{filter, kubeCanary}: nil, {nat, kubeCanary}: nil, {mangle, kubeCanary}: nil,
	}
	if !d.liberal {
		out[place{filter, kubeForward}] = slices.Insert(out[place{filter, kubeForward}], 0, "-m conntrack --ctstate INVALID "+comment(invalidDropped)+"-j DROP")
	}
	if v.localhost { // this one only counts
		out[place{nat, kubePost}] = slices.Insert(out[place{nat, kubePost}], 1,
			comment(localhostAccepted)+"-m conntrack --ctstate DNAT --ctorigdst 127.0.0.0/8")
	}
	for _, p := range places() {
		out[p] = nil
	}
	for _, match := range v.nodePorts {
		out[dispatch] = append(out[dispatch], match+
			comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")+toLocal+"-j "+kubeNodePorts)
	}
	if v.guard.InForce {
		out[nodePortFilter] = []string{loopbackGuard(v.guard)}
	}
	out[emptyClusterIP] = v.unanswered()
	return out
}

// markOther marks everything but our pods' traffic; nobody's if pods cannot be
// told apart.
func (v *view) markOther() []string {
	var rules []string
	switch {
	case v.all:
	case !v.detects:
		return nil
	default:
		for _, match := range v.pods {
			rules = append(rules, match+"-j RETURN")
		}
	}
	return append(rules, "-j "+kubeMark)
}

// unanswered takes the node's own packets past the external frontends, which
// those of others come by on their way. Then it refuses other ports of
// ClusterIPs, and is silent for addresses that no Service has. Where the ranges
// are known, other traffic is spared the walk through all ClusterIPs.
func (v *view) unanswered() []string {
	rules := []string{fromLocal + "-j " + kubeExternal}
	if len(v.cidrs) == 0 {
		return append(rules, "-j "+kubeAddresses)
	}
	for _, match := range v.cidrs {
		rules = append(rules, match+"-j "+kubeAddresses, match+comment("no Service has this address")+"-j DROP")
	}
	return rules
}

// jump is a rule of a built-in chain that leads to ours.
type jump struct {
	place
	rule string
}

// jumps returns the rules that make everything else live, those of each chain
// in order. They are kube-proxy's, none more: it can unlink us.
func jumps() []jump {
	var out []jump
	add := func(table, rule string, chains ...string) {
		for _, c := range chains {
			out = append(out, jump{place{table, c}, rule})
		}
	}
	flow := func(text, chain string) string { return newFlow + comment(text) + "-j " + chain }
	add(filter, flow("kubernetes externally-visible service portals", kubeExternal), "INPUT", "FORWARD")
	add(filter, flow("kubernetes service portals", kubeServices), "FORWARD", "OUTPUT")
	add(filter, flow("kubernetes load balancer firewall", kubeFirewall), "INPUT", "FORWARD", "OUTPUT")
	add(filter, comment("kubernetes health check service ports")+"-j "+kubeNodePorts, "INPUT")
	add(filter, comment("kubernetes forwarding rules")+"-j "+kubeForward, "FORWARD")
	add(nat, comment("kubernetes service portals")+"-j "+kubeServices, "PREROUTING", "OUTPUT")
	add(nat, comment("kubernetes postrouting rules")+"-j "+kubePost, "POSTROUTING")
	return out
}

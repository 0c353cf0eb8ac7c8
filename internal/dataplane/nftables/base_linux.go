package nftables

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// chain is a chain with its rules. One that the kernel listed has only a name and
// asListed.
type chain struct {
	nft.Chain
	t        *table
	rules    []*nft.Rule
	asListed []nft.ListedRule // cached by listed; nil if not computed yet
	rank     int              // the rank of its addition
	class    class            // the class that the chain belongs to, if any
}

// listed returns the chain's rules in the form in which the kernel lists them.
func (c *chain) listed() []nft.ListedRule {
	if c.asListed == nil {
		for _, r := range c.rules {
			c.asListed = append(c.asListed, r.Listed(c.t.Table.Family))
		}
	}
	return c.asListed
}

// Names of the constant chains.
const (
	services         = "services"
	dispatch         = "dispatch"
	external         = "external"
	externalLocal    = "external-local"
	nodePorts        = "nodeports"
	nodePortServices = "nodeport-services"
	nodePortDispatch = "nodeport-dispatch"
	nodePortExternal = "nodeport-external"
	nodePortLocal    = "nodeport-external-local"
	markClusterIP    = "mark-cluster-ip"
	markNode         = "mark-node"
	newInput         = "new-input"
	newForward       = "new-forward"
	newOutput        = "new-output"
	noEndpoints      = "no-endpoints"
	nodePortFilter   = "nodeport-filter"
	nodePortEmpty    = "nodeport-no-endpoints"
	unserved         = "unserved"
	otherAddresses   = "other-service-addresses"
	otherPorts       = "other-ports"
	sourceRanges     = "source-ranges"
	refuse           = "refuse"

	firewallPrerouting = "firewall-prerouting" // base chains
	firewallOutput     = "firewall-output"

	priorityFirewall = -110
	priorityDNAT     = -100
	priorityFilter   = 0
	prioritySNAT     = 100
)

// constantChains returns the chains that do not depend on rows: those that are
// reached by jumps, and then the base chains, which make the others take effect.
func (t *table) constantChains(n *proxy.Node, cidrs []netip.Prefix, guard localnet.Guard) []*chain {
	all := []*chain{
		t.chain(services, t.dispatch(&t.addresses, dispatch), t.rule().goTo(nodePorts).comment("by NodePort")),
		t.dispatchChain(dispatch, external, t.rule().priority().hasAny(clusterIPFlag).jump(markClusterIP).
			comment("masquerade clients of ClusterIPs that are not our pods")),
		t.externalChain(external, externalLocal, &t.addresses),
		t.externalLocalChain(externalLocal, &t.addresses, n),
		t.nodePortChain(nodePorts, nodePortServices, n),
		t.chain(nodePortServices, t.dispatch(&t.nodePorts, nodePortDispatch)),
		t.dispatchChain(nodePortDispatch, nodePortExternal),
		t.externalChain(nodePortExternal, nodePortLocal, &t.nodePorts),
		t.externalLocalChain(nodePortLocal, &t.nodePorts, n),
		t.markChain(markClusterIP, proxy.CommonPolicy(t.family, proxy.ClusterIP, proxy.ScopeCluster, n), n, "masquerade"),
		// Clients from elsewhere do not get here: a frontend split by origin keeps their
		// source address.
		t.markChain(markNode, proxy.CommonPolicy(t.family, proxy.LoadBalancer, proxy.ScopeLocal, n), n, "masquerade the node"),
		t.noEndpointsChain(noEndpoints, &t.addresses),
		t.nodePortChain(nodePortFilter, nodePortEmpty, n),
		t.noEndpointsChain(nodePortEmpty, &t.nodePorts),
		t.chain(unserved,
			t.rule().priority().eq(hostWord(dropped)).goTo(refusedNoLocal).comment("no endpoint for this node"),
			t.rule().goTo(refusedNoEndpoints).comment("no endpoint anywhere")),
		t.otherAddressesChain(cidrs),
		t.chain(sourceRanges, t.rule().frontend(&t.addresses).vmap(t.restricted).comment("loadBalancerSourceRanges")),
		t.refuseChain(),
	}
	all = append(append(append(all, t.newFlowChains(n)...), t.refusalChains()...), t.closedLoopbackChains(n)...)
	if t.overlay.Takes != nil {
		all = append(all, t.otherPortsChain())
	}
	return append(append(all, t.endpointChains()...), t.guardedBaseChains(guard)...)
}

// guardedBaseChains returns the base chains, with the guard of loopback addresses at the
// start of firewall-prerouting. The guard needs a chain of type filter, which sees all packets;
// a chain of type nat sees only the first packet of a flow.
func (t *table) guardedBaseChains(guard localnet.Guard) []*chain {
	base, rules := t.baseChains(), t.guardRules(guard)
	if base[0].Name == firewallPrerouting {
		base[0].rules = append(rules, base[0].rules...)
	} else if len(rules) > 0 {
		base = append([]*chain{t.baseChain(firewallPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall, rules...)}, base...)
	}
	return base
}

// chain returns a constant chain that is reached by jumps.
func (t *table) chain(name string, rules ...*nft.Rule) *chain {
	return &chain{Chain: nft.Chain{Name: name}, t: t, rules: rules, rank: rankConstant}
}

func (t *table) baseChain(name, kind string, hook uint32, priority int32, rules ...*nft.Rule) *chain {
	c := t.chain(name, rules...)
	c.Hook = &nft.Hook{Type: kind, Number: hook, Priority: priority}
	return c
}

// baseChains returns the base chains, without the guard of loopback addresses.
func (t *table) baseChains() []*chain {
	input, forward, output := t.newFlowJumps(newInput), t.newFlowJumps(newForward), t.newFlowJumps(newOutput)
	if t.overlay.Sockets != nil {
		input, output = append([]*nft.Rule{t.acceptToSocket()}, input...), append([]*nft.Rule{t.rememberSocketFlow(), t.acceptToSocket()}, output...)
	}
	all := []*chain{
		t.baseChain("filter-input", "filter", unix.NF_INET_LOCAL_IN, priorityFilter, input...),
		t.baseChain("filter-forward", "filter", unix.NF_INET_FORWARD, priorityFilter, forward...),
		t.baseChain("filter-output", "filter", unix.NF_INET_LOCAL_OUT, priorityFilter, output...),
	}
	firewall := func(r *rule) *nft.Rule { return r.jump(sourceRanges).comment("loadBalancerSourceRanges") }
	if t.overlay.Sockets != nil {
		all = append([]*chain{
			t.baseChain(firewallPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall, firewall(t.rule().newFlow())),
			t.baseChain(firewallOutput, "filter", unix.NF_INET_LOCAL_OUT, priorityFirewall, firewall(t.rule().newFlow())),
		}, all...)
		return append(all, t.socketBaseChains()...)
	}
	if t.overlay.OnLink {
		all = append(all, t.baseChain("filter-taken", "filter", unix.NF_INET_LOCAL_OUT, priorityBeforeIPVS,
			t.rule().newFlow().daddr().inSet(t.onLink).jump(noEndpoints).comment("Services without an endpoint")))
	}
	all = append(all, t.untrackedBaseChains(t.currentUntracked())...)
	toServices := t.rule().jump(services).comment("send connections to Services to an endpoint")
	return append(all,
		t.baseChain("nat-postrouting", "nat", unix.NF_INET_POST_ROUTING, prioritySNAT, append(t.masqueradeRules(), t.translatedPorts()...)...),
		t.baseChain("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, priorityDNAT, firewall(t.rule()), toServices),
		t.baseChain("nat-output", "nat", unix.NF_INET_LOCAL_OUT, priorityDNAT, firewall(t.rule()), toServices))
}

// newFlowChains returns the filter chains for packets that begin a flow. All other
// packets pass one rule in each base chain.
func (t *table) newFlowChains(n *proxy.Node) []*chain {
	empty := func() *nft.Rule { return t.rule().jump(noEndpoints).comment("Services without an endpoint") }
	others := func(r *rule) *nft.Rule { return r.jump(otherAddresses).comment("not a Service port") }
	// The kernel resets the priority of forwarded IPv4 packets, but not of IPv6 packets.
	priority := func() *nft.Rule {
		return t.rule().translated().priorityHas(scratchBit).clearPriority().comment("clear what lookups stored")
	}
	input := t.chain(newInput, empty(), t.rule().jump(nodePortFilter).comment("NodePorts without an endpoint"))
	if t.overlay.OnLink { // packets that the overlay takes are delivered to this node
		input.rules = append(input.rules, t.rule().translated().accept().comment("translated"),
			t.rule().jump(otherPorts).comment("not a Service port"))
	}
	output := t.chain(newOutput, priority(), empty(), others(t.rule().markLacks(mode.SocketMark)))
	if n.RefusesLoopback {
		output.rules = append(output.rules, t.rule().daddrIn(t.family.Loopback()).jump(loopbackFilter).comment("NodePorts that are closed at loopback addresses"))
	}
	return []*chain{input, t.chain(newForward, priority(), empty(), others(t.rule())), output}
}

// refuseChain rejects packets. The kernel sends each client only a few ICMP errors per second,
// but any number of TCP resets. Resets are sent only for packets that open a connection, because
// a stray packet must not end an open one, and only for frames to this host, because a switch
// may deliver a frame to many hosts.
func (t *table) refuseChain() *chain {
	c := t.chain(refuse, t.rule().reject().comment("refuse"))
	if t.resetTCP {
		c.rules = append([]*nft.Rule{t.rule().tcpSYN().toThisHost().rejectWithReset().comment("refuse TCP connections with a reset")}, c.rules...)
	}
	return c
}

// masqueradeRules returns the rules that replace a client's address by the node's. The
// hairpin rule requires that connection tracking has translated the destination, except with
// an overlay, which may translate flows in another way.
func (t *table) masqueradeRules() []*nft.Rule {
	hairpin := t.rule().translated()
	if t.overlay.Takes != nil {
		hairpin = t.rule()
	}
	all := []*nft.Rule{
		t.rule().marked().setMark(false).masquerade().comment("marked for masquerade"),
		hairpin.saddr().daddr().protocol().port().inSet(t.hairpins).masquerade().comment("a pod sent to itself"),
	}
	if t.overlay.OnLink {
		all = append(all, t.rule().saddr().inSet(t.onLink).masquerade().comment("an endpoint could not reply to this address"))
	}
	return all
}

// clusterIPFlag is the bit that @services sets in the number of a class if the frontend is
// a ClusterIP.
const clusterIPFlag = (slots - firstClass) / 2

// Values of the maps of frontends other than numbers of classes.
const (
	split    = scratchBit + 1 + iota // @services: which list is used depends on the origin
	rejected                         // @no-endpoints: there is no endpoint
	dropped                          // @no-endpoints: there is no endpoint for clients from elsewhere
)

// dispatch returns the rule that sends packets to a frontend in m to another chain,
// with the value that the map has for the frontend as their priority.
func (t *table) dispatch(m *frontendMaps, to string) *nft.Rule {
	return t.rule().frontend(m).setPriorityFrom(m.dispatch).goTo(to).comment("Services")
}

// dispatchChain sends packets to the chain of the class in their priority, or to the
// chain external if the frontend is split by origin.
func (t *table) dispatchChain(name, external string, before ...*nft.Rule) *chain {
	return t.chain(name, append(before,
		t.rule().priority().eq(hostWord(split)).goTo(external).comment("externalTrafficPolicy Local"),
		t.rule().priority().bitwise(^uint32(clusterIPFlag), 0).vmap(t.classSet).comment("choose an endpoint"))...)
}

// choose sends packets to the chain of the class that the map by has for their frontend.
// Packets without one continue with the next rule.
func (t *table) choose(m *frontendMaps, by *nft.Set) *rule {
	return t.rule().frontend(m).setPriorityFrom(by).priority().vmap(t.classSet)
}

// externalChain handles frontends with externalTrafficPolicy Local. Packets of clients from
// elsewhere do not return from the chain local; those of our pods and the node do, and
// may use any endpoint.
func (t *table) externalChain(name, local string, m *frontendMaps) *chain {
	return t.chain(name,
		t.rule().jump(local).comment("clients from elsewhere"),
		t.rule().jump(markNode).comment("the node"),
		t.choose(m, m.external).comment("choose an endpoint"))
}

// externalLocalChain restricts clients from elsewhere to the Local list. If the list is
// empty, the packet is not translated and the filter drops it.
func (t *table) externalLocalChain(name string, m *frontendMaps, n *proxy.Node) *chain {
	c := t.chain(name, t.ourPods(n, (*rule).returns)...)
	c.rules = append(c.rules,
		t.rule().saddrIsLocal().returns().comment("the node may use any endpoint"),
		t.choose(m, m.locals).comment("others may use local endpoints"),
		t.rule().accept().comment("no local endpoint"))
	return c
}

// noEndpointsChain refuses packets to frontends in m that have no endpoint.
func (t *table) noEndpointsChain(name string, m *frontendMaps) *chain {
	return t.chain(name, t.rule().frontend(m).setPriorityFrom(m.noEndpoints).goTo(unserved).comment("Services without an endpoint"))
}

// nodePortChain sends packets to node addresses that accept NodePorts to another chain.
func (t *table) nodePortChain(name, to string, n *proxy.Node) *chain {
	c := t.chain(name)
	within, except := n.NodePortAddresses(t.family)
	for _, p := range except {
		c.rules = append(c.rules, t.rule().daddrIn(p).returns().comment("no NodePorts on loopback addresses"))
	}
	for _, p := range within {
		c.rules = append(c.rules,
			t.rule().daddrIn(p).daddrIsLocal().goTo(to).comment("node addresses with NodePorts"))
	}
	return c
}

// markChain marks the packets of the origins that a policy masquerades. If it
// masquerades any origin, it masquerades the node.
func (t *table) markChain(name string, p proxy.Policy, n *proxy.Node, text string) *chain {
	c := t.chain(name)
	if !p[proxy.ThisNode].Masquerade {
		return c
	}
	if !p[proxy.OurPod].Masquerade {
		c.rules = t.ourPods(n, (*rule).returns)
	}
	c.rules = append(c.rules, t.rule().setMark(true).comment(text))
	return c
}

// ourPods returns one rule for each way to recognize packets of our pods; then appends the
// verdict.
func (t *table) ourPods(n *proxy.Node, then func(*rule) *rule) []*nft.Rule {
	var rules []*nft.Rule
	for _, p := range proxy.PrefixesOf(n.LocalPods.Sources, t.family) {
		rules = append(rules, then(t.rule().saddrIn(p)).comment("our pods"))
	}
	if name := n.LocalPods.Interface; name != "" {
		rules = append(rules, then(t.rule().iifname(name, n.LocalPods.IsPrefix)).comment("our pods"))
	}
	return rules
}

// otherAddressesChain refuses packets to Service addresses at a port that no Service has, and
// drops packets to addresses in a ServiceCIDR that no Service has.
func (t *table) otherAddressesChain(cidrs []netip.Prefix) *chain {
	c := t.chain(otherAddresses,
		t.rule().daddr().inSet(t.clusterIPs).goTo(refuse).comment("not a port of this Service"))
	if t.overlay.OnLink {
		c.rules = append(c.rules, t.rule().daddr().inSet(t.onLink).goTo(refuse).comment("not a port of any Service"))
	}
	if a, ok := t.overlay.NodePortsTo[t.family]; ok {
		c.rules = append(c.rules, t.rule().daddrIn(netip.PrefixFrom(a, a.BitLen())).goTo(refuse).comment("not a NodePort"))
	}
	for _, p := range proxy.PrefixesOf(cidrs, t.family) {
		c.rules = append(c.rules, t.rule().daddrIn(p).drop().comment("no Service has this address"))
	}
	return c
}

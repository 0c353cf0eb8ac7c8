package nftables

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

type chain struct {
	nft.Chain
	t        *table
	rules    []*nft.Rule
	asListed []nft.ListedRule // nil: not known yet
	rank     int              // when it is written
	class    class            // whose it is, if it is a class's own
}

// listed returns the chain's rules as a listing has them.
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

// constant returns the chains that do not depend on rows: those that are
// reached by jumps, and the base chains, which make the others live.
func (t *table) constant(n *proxy.Node, cidrs []netip.Prefix, guard localnet.Guard) []*chain {
	all := []*chain{
		t.chain(services, t.dispatch(&t.addresses, dispatch), t.rule().goTo(nodePorts).comment("by NodePort")),
		t.dispatchChain(dispatch, external, t.rule().priority().has(toClusterIP).jump(markClusterIP).
			comment("ClusterIPs hide clients that are not our pods")),
		t.externalChain(external, externalLocal, &t.addresses),
		t.externalLocalChain(externalLocal, &t.addresses, n),
		t.nodePortChain(nodePorts, nodePortServices, n),
		t.chain(nodePortServices, t.dispatch(&t.nodePorts, nodePortDispatch)),
		t.dispatchChain(nodePortDispatch, nodePortExternal),
		t.externalChain(nodePortExternal, nodePortLocal, &t.nodePorts),
		t.externalLocalChain(nodePortLocal, &t.nodePorts, n),
		t.markChain(markClusterIP, proxy.CommonPolicy(t.family, proxy.ClusterIP, proxy.ScopeCluster, n), n, "masquerade"),
		// Clients from elsewhere, whom a split frontend shows, do not come here.
		t.markChain(markNode, proxy.CommonPolicy(t.family, proxy.LoadBalancer, proxy.ScopeLocal, n), n, "masquerade the node"),
		t.noEndpointsChain(noEndpoints, &t.addresses),
		t.nodePortChain(nodePortFilter, nodePortEmpty, n),
		t.noEndpointsChain(nodePortEmpty, &t.nodePorts),
		t.chain(unserved,
			t.rule().priority().is(hostWord(dropped)).goTo(refusedNoLocal).comment("no endpoint for this node"),
			t.rule().goTo(refusedNoEndpoints).comment("no endpoint anywhere: refuse")),
		t.otherAddressesChain(cidrs),
		t.chain(sourceRanges, t.rule().frontend(&t.addresses).vmap(t.restricted).comment("only some clients may go on")),
		t.refuseChain(),
	}
	all = append(append(all, t.newFlowChains()...), t.refusalChains()...)
	if t.over.Takes != nil {
		all = append(all, t.otherPortsChain())
	}
	return append(append(all, t.choices()...), t.guardedHooks(guard)...)
}

// guardedHooks returns the base chains, and the guard before them. It sees all packets,
// while the first one only of a flow comes to a chain that translates.
func (t *table) guardedHooks(guard localnet.Guard) []*chain {
	base, rules := t.hooks(), t.guard(guard)
	if base[0].Name == firewallPrerouting {
		base[0].rules = append(rules, base[0].rules...)
	} else if len(rules) > 0 {
		base = append([]*chain{t.base(firewallPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall, rules...)}, base...)
	}
	return base
}

func (t *table) chain(name string, rules ...*nft.Rule) *chain {
	return &chain{Chain: nft.Chain{Name: name}, t: t, rules: rules, rank: rankConstant}
}

func (t *table) base(name, kind string, hook uint32, priority int32, rules ...*nft.Rule) *chain {
	c := t.chain(name, rules...)
	c.Hook = &nft.Hook{Type: kind, Number: hook, Priority: priority}
	return c
}

// hooks returns the base chains.
func (t *table) hooks() []*chain {
	input, forward, output := t.unled(newInput), t.unled(newForward), t.unled(newOutput)
	if t.over.Sockets != nil {
		input, output = append([]*nft.Rule{t.toSockets()}, input...), append([]*nft.Rule{t.remember(), t.toSockets()}, output...)
	}
	all := []*chain{
		t.base("filter-input", "filter", unix.NF_INET_LOCAL_IN, priorityFilter, input...),
		t.base("filter-forward", "filter", unix.NF_INET_FORWARD, priorityFilter, forward...),
		t.base("filter-output", "filter", unix.NF_INET_LOCAL_OUT, priorityFilter, output...),
	}
	firewall := func(r *rule) *nft.Rule { return r.jump(sourceRanges).comment("loadBalancerSourceRanges") }
	if t.over.Sockets != nil {
		all = append([]*chain{
			t.base(firewallPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall, firewall(t.rule().newFlow())),
			t.base(firewallOutput, "filter", unix.NF_INET_LOCAL_OUT, priorityFirewall, firewall(t.rule().newFlow())),
		}, all...)
		return append(all, t.socketHooks()...)
	}
	if t.over.OnLink {
		all = append(all, t.base("filter-taken", "filter", unix.NF_INET_LOCAL_OUT, priorityBeforeIPVS,
			t.rule().newFlow().load(false).in(t.onLink).jump(noEndpoints).comment("Services without an endpoint")))
	}
	all = append(all, t.untrackedHook(t.untracked())...)
	toServices := t.rule().jump(services).comment("send connections to Services to an endpoint")
	return append(all,
		t.base("nat-postrouting", "nat", unix.NF_INET_POST_ROUTING, prioritySNAT, append(t.masquerading(), t.translatedPorts()...)...),
		t.base("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, priorityDNAT, firewall(t.rule()), toServices),
		t.base("nat-output", "nat", unix.NF_INET_LOCAL_OUT, priorityDNAT, firewall(t.rule()), toServices))
}

// newFlowChains returns what is asked of packets that begin a flow. All others
// pass one rule in each base chain.
func (t *table) newFlowChains() []*chain {
	empty := func() *nft.Rule { return t.rule().jump(noEndpoints).comment("Services without an endpoint") }
	others := func(r *rule) *nft.Rule { return r.jump(otherAddresses).comment("addresses of no Service port") }
	// Forwarding sets an IPv4 packet's priority anew, but not an IPv6 one's.
	priority := func() *nft.Rule {
		return t.rule().translated().priorityHas(scratchBit).clearPriority().comment("what lookups put there")
	}
	input := t.chain(newInput, empty(), t.rule().jump(nodePortFilter).comment("NodePorts without an endpoint"))
	if t.over.OnLink { // what is taken comes through here
		input.rules = append(input.rules, t.rule().translated().accept().comment("translated"),
			t.rule().jump(otherPorts).comment("addresses of no Service port"))
	}
	return []*chain{
		input,
		t.chain(newForward, priority(), empty(), others(t.rule())),
		t.chain(newOutput, priority(), empty(), others(t.rule().lacks(mode.SocketMark))),
	}
}

// refuseChain refuses packets. Of ICMP errors the kernel sends a client few in a second, of
// resets any number; but a reset would end an open connection for a stray packet, and many
// hosts may get one frame.
func (t *table) refuseChain() *chain {
	c := t.chain(refuse, t.rule().reject().comment("refused at once"))
	if t.resetTCP {
		c.rules = append([]*nft.Rule{t.rule().beginsTCP().toThisHost().reset().comment("TCP, refused at once")}, c.rules...)
	}
	return c
}

// masquerading returns the rules that hide clients. An overlay may translate
// flows without connection tracking noting that they are.
func (t *table) masquerading() []*nft.Rule {
	hairpin := t.rule().translated()
	if t.over.Takes != nil {
		hairpin = t.rule()
	}
	all := []*nft.Rule{
		t.rule().marked().setMark(false).masquerade().comment("marked on the way to an endpoint"),
		hairpin.load(true).load(false).protocol().port().in(t.hairpins).masquerade().comment("a pod sent to itself"),
	}
	if t.over.OnLink {
		all = append(all, t.rule().load(true).in(t.onLink).masquerade().comment("an endpoint could not answer there"))
	}
	return all
}

// toClusterIP is set in the number of a class if the frontend is a ClusterIP.
const toClusterIP = (slots - firstClass) / 2

// Of a frontend, maps have the number of a class or one of these.
const (
	split    = scratchBit + 1 + iota // its clients do not all take the same list
	rejected                         // it has no endpoint
	dropped                          // it has none for clients from elsewhere
)

// dispatch sends packets to Services on, whatever becomes of them.
func (t *table) dispatch(m *frontendMaps, to string) *nft.Rule {
	return t.rule().frontend(m).priorityBy(m.dispatch).goTo(to).comment("Services")
}

// dispatchChain sends packets to the chain of the class in their priority.
func (t *table) dispatchChain(name, external string, before ...*nft.Rule) *chain {
	return t.chain(name, append(before,
		t.rule().priority().is(hostWord(split)).goTo(external).comment("externalTrafficPolicy Local"),
		t.rule().priority().bits(^uint32(toClusterIP), 0).vmap(t.classSet).comment("choose an endpoint"))...)
}

// choose sends a packet to the chain of the class that a map has for its
// frontend.
func (t *table) choose(m *frontendMaps, by *nft.Set) *rule {
	return t.rule().frontend(m).priorityBy(by).priority().vmap(t.classSet)
}

// externalChain is for externalTrafficPolicy Local: clients from elsewhere do
// not come back from the local list, our pods and the node go on.
func (t *table) externalChain(name, local string, m *frontendMaps) *chain {
	return t.chain(name,
		t.rule().jump(local).comment("clients from elsewhere"),
		t.rule().jump(markNode).comment("the node"),
		t.choose(m, m.external).comment("choose an endpoint"))
}

// externalLocalChain keeps clients from elsewhere on the Local list: without
// one, the packet stays as it is and the filter drops it.
func (t *table) externalLocalChain(name string, m *frontendMaps, n *proxy.Node) *chain {
	c := t.chain(name, t.ourPods(n, (*rule).returns)...)
	c.rules = append(c.rules,
		t.rule().local(true).returns().comment("the node takes any endpoint"),
		t.choose(m, m.locals).comment("others take local endpoints"),
		t.rule().accept().comment("there is none"))
	return c
}

func (t *table) noEndpointsChain(name string, m *frontendMaps) *chain {
	return t.chain(name, t.rule().frontend(m).priorityBy(m.empty).goTo(unserved).comment("Services without an endpoint"))
}

// nodePortChain sends packets to the node addresses that take NodePorts to
// another chain.
func (t *table) nodePortChain(name, to string, n *proxy.Node) *chain {
	c := t.chain(name)
	within, except := n.NodePortAddresses(t.family)
	for _, p := range except {
		c.rules = append(c.rules, t.rule().within(false, p).returns().comment("loopback takes no NodePorts"))
	}
	for _, p := range within {
		c.rules = append(c.rules,
			t.rule().within(false, p).local(false).goTo(to).comment("node addresses that take NodePorts"))
	}
	return c
}

// markChain marks the packets of the origins that a policy masquerades, where
// the node is one of them if anyone is.
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

// ourPods returns rules that do something for our pods' traffic.
func (t *table) ourPods(n *proxy.Node, then func(*rule) *rule) []*nft.Rule {
	var rules []*nft.Rule
	for _, p := range proxy.PrefixesOf(n.LocalPods.Sources, t.family) {
		rules = append(rules, then(t.rule().within(true, p)).comment("our pods"))
	}
	if name := n.LocalPods.Interface; name != "" {
		rules = append(rules, then(t.rule().inBy(name, n.LocalPods.IsPrefix)).comment("our pods"))
	}
	return rules
}

func (t *table) otherAddressesChain(cidrs []netip.Prefix) *chain {
	c := t.chain(otherAddresses,
		t.rule().load(false).in(t.clusterIPs).goTo(refuse).comment("not a port of this Service"))
	if t.over.OnLink {
		c.rules = append(c.rules, t.rule().load(false).in(t.onLink).goTo(refuse).comment("not a port of any Service"))
	}
	if a, ok := t.over.NodePortsTo[t.family]; ok {
		c.rules = append(c.rules, t.rule().within(false, netip.PrefixFrom(a, a.BitLen())).goTo(refuse).comment("not a NodePort"))
	}
	for _, p := range proxy.PrefixesOf(cidrs, t.family) {
		c.rules = append(c.rules, t.rule().within(false, p).drop().comment("no Service has this address"))
	}
	return c
}

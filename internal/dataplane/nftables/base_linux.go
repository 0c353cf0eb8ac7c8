package nftables

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// chain is a chain with its rules.
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
	external         = "external"
	externalLocal    = "external-local"
	nodePorts        = "nodeports"
	nodePortServices = "nodeport-services"
	nodePortExternal = "nodeport-external"
	nodePortLocal    = "nodeport-external-local"
	markClusterIP    = "mark-cluster-ip"
	markNode         = "mark-node"
	noEndpoints      = "no-endpoints"
	nodePortFilter   = "nodeport-filter"
	nodePortEmpty    = "nodeport-no-endpoints"
	otherAddresses   = "other-service-addresses"
	otherPorts       = "other-ports"
	sourceRanges     = "source-ranges"
	refuse           = "refuse"

	firewallPrerouting = "firewall-prerouting" // a base chain

	priorityFirewall = -110
	priorityDNAT     = -100
	priorityFilter   = 0
	prioritySNAT     = 100
)

// constant returns the chains that do not depend on rows: those that are
// reached by jumps, and the base chains, which make the others live.
func (t *table) constant(n *proxy.Node, cidrs []netip.Prefix, guard localnet.Guard) []*chain {
	all := []*chain{
		t.servicesChain(n),
		t.externalChain(external, externalLocal, &t.addresses),
		t.externalLocalChain(externalLocal, &t.addresses, n),
		t.nodePortChain(nodePorts, nodePortServices, n),
		t.chain(nodePortServices, t.dispatch(&t.nodePorts, nodePortExternal)...),
		t.externalChain(nodePortExternal, nodePortLocal, &t.nodePorts),
		t.externalLocalChain(nodePortLocal, &t.nodePorts, n),
		t.markChain(markClusterIP, t.clusterIPPolicy(n), n, "masquerade"),
		// Clients from elsewhere, whom a split frontend shows, do not come here.
		t.markChain(markNode, proxy.CommonPolicy(t.family, proxy.LoadBalancer, proxy.ScopeLocal, n), n, "masquerade the node"),
		t.noEndpointsChain(noEndpoints, &t.addresses),
		t.nodePortChain(nodePortFilter, nodePortEmpty, n),
		t.noEndpointsChain(nodePortEmpty, &t.nodePorts),
		t.otherAddressesChain(cidrs),
		t.sourceRangesChain(),
		t.chain(refuse, t.rule().reject().comment("refused at once")),
	}
	all = append(all, t.refusalChains()...)
	if t.over.Takes != nil {
		all = append(all, t.otherPortsChain())
	}
	return append(append(all, t.choices()...), t.guardedHooks(guard)...)
}

// guardedHooks returns the base chains, with the guard.
func (t *table) guardedHooks(guard localnet.Guard) []*chain {
	base := t.hooks()
	base[0].rules = append(t.guard(guard), base[0].rules...) // firewall-prerouting
	return base
}

func (t *table) chain(name string, rules ...*nft.Rule) *chain {
	return &chain{Chain: nft.Chain{Name: name}, t: t, rules: rules, rank: rankConstant}
}

// base returns a base chain.
func (t *table) base(name, kind string, hook uint32, priority int32, rules ...*nft.Rule) *chain {
	c := t.chain(name, rules...)
	c.Hook = &nft.Hook{Type: kind, Number: hook, Priority: priority}
	return c
}

// hooks returns the base chains.
func (t *table) hooks() []*chain {
	dispatch := func() *nft.Rule {
		return t.rule().jump(services).comment("send connections to Services to an endpoint")
	}
	firewall := func() *nft.Rule { return t.rule().newFlow().jump(sourceRanges).comment("loadBalancerSourceRanges") }
	empty := t.unled(func(r *rule) *nft.Rule { return r.jump(noEndpoints).comment("Services without an endpoint") })
	// Forwarding sets an IPv4 packet's priority anew, but not an IPv6 one's.
	priority := func() *nft.Rule {
		return t.rule().newFlow().translated().priorityHas(scratchBit).clearPriority().comment("what lookups put there")
	}
	others := func(r *rule) *nft.Rule { return r.jump(otherAddresses).comment("addresses of no Service port") }
	nodePorts := func(r *rule) *nft.Rule { return r.jump(nodePortFilter).comment("NodePorts without an endpoint") }
	input := slices.Concat(empty, t.unled(nodePorts))
	forward := slices.Concat([]*nft.Rule{priority()}, empty, t.unled(others))
	output := slices.Concat([]*nft.Rule{priority()}, empty, t.unled(func(r *rule) *nft.Rule { return others(r.lacks(mode.SocketMark)) }))
	switch {
	case t.over.OnLink: // what is taken comes through here
		input = append(input, t.rule().translated().accept().comment("translated"),
			t.rule().newFlow().jump(otherPorts).comment("addresses of no Service port"))
	case t.over.Sockets != nil:
		input, output = append([]*nft.Rule{t.toSockets()}, input...), append([]*nft.Rule{t.remember(), t.toSockets()}, output...)
	}
	all := []*chain{
		t.base(firewallPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall, firewall()),
		t.base("firewall-output", "filter", unix.NF_INET_LOCAL_OUT, priorityFirewall, firewall()),
		t.base("filter-input", "filter", unix.NF_INET_LOCAL_IN, priorityFilter, input...),
		t.base("filter-forward", "filter", unix.NF_INET_FORWARD, priorityFilter, forward...),
		t.base("filter-output", "filter", unix.NF_INET_LOCAL_OUT, priorityFilter, output...),
	}
	if t.over.Sockets != nil {
		return append(all, t.socketHooks()...)
	}
	if t.over.OnLink {
		all = append(all, t.base("filter-taken", "filter", unix.NF_INET_LOCAL_OUT, priorityBeforeIPVS,
			t.rule().newFlow().load(false).in(t.onLink).jump(noEndpoints).comment("Services without an endpoint")))
	}
	return append(all,
		t.base("nat-postrouting", "nat", unix.NF_INET_POST_ROUTING, prioritySNAT, t.masquerading()...),
		t.base("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, priorityDNAT, dispatch()),
		t.base("nat-output", "nat", unix.NF_INET_LOCAL_OUT, priorityDNAT, dispatch()))
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

func (t *table) servicesChain(n *proxy.Node) *chain {
	c := t.chain(services)
	if p := t.clusterIPPolicy(n); slices.ContainsFunc(p[:], func(r proxy.Route) bool { return r.Masquerade }) {
		c.rules = append(c.rules, t.rule().load(false).in(t.clusterIPs).jump(markClusterIP).comment("ClusterIPs hide clients that are not our pods"))
	}
	c.rules = append(c.rules, t.dispatch(&t.addresses, external)...)
	c.rules = append(c.rules, t.rule().goTo(nodePorts).comment("by NodePort"))
	return c
}

// clusterIPPolicy is what the table of policy says of masquerading for every
// ClusterIP alike.
func (t *table) clusterIPPolicy(n *proxy.Node) proxy.Policy {
	return proxy.CommonPolicy(t.family, proxy.ClusterIP, proxy.ScopeCluster, n)
}

// dispatch returns the rules that send a packet to its frontend's endpoints.
func (t *table) dispatch(m *frontendMaps, external string) []*nft.Rule {
	return []*nft.Rule{
		t.rule().frontend(m).in(m.external).goTo(external).comment("externalTrafficPolicy Local"),
		t.choose(m, m.dispatch).comment("choose an endpoint"),
	}
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
		t.choose(m, m.dispatch).comment("choose an endpoint"))
}

// externalLocalChain keeps clients from elsewhere on the Local list: without
// one, the packet stays as it is and the filter drops it. Their address is shown to
// the endpoint, even if another Service has this one for its ClusterIP.
func (t *table) externalLocalChain(name string, m *frontendMaps, n *proxy.Node) *chain {
	c := t.chain(name, t.ourPods(n, (*rule).returns)...)
	c.rules = append(c.rules,
		t.rule().local(true).returns().comment("the node takes any endpoint"),
		t.rule().setMark(false).comment("whosever ClusterIP it is, too"),
		t.choose(m, m.locals).comment("others take local endpoints"),
		t.rule().accept().comment("there is none"))
	return c
}

func (t *table) noEndpointsChain(name string, m *frontendMaps) *chain {
	return t.chain(name,
		t.rule().frontend(m).in(m.rejects).goTo(refusedNoEndpoints).comment("no endpoint anywhere: refuse"),
		t.rule().frontend(m).in(m.drops).goTo(refusedNoLocal).comment("no endpoint for this node"))
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

func (t *table) sourceRangesChain() *chain {
	return t.chain(sourceRanges, t.rule().
		frontend(&t.addresses).in(t.restricted).
		frontend(&t.addresses).load(true).notIn(t.allowed).
		goTo(refusedSource).comment("not an allowed client"))
}

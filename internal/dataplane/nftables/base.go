package nftables

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// chain is a chain with its rules.
type chain struct {
	nft.Chain
	rules []*nft.Rule
}

// Names of the constant chains.
const (
	services         = "services"
	nodePorts        = "nodeports"
	markClusterIP    = "mark-cluster-ip"
	markNode         = "mark-node"
	localOnly        = "local-only"
	nodePortLocal    = "nodeport-local-only"
	noEndpoints      = "no-endpoints"
	nodePortEmpty    = "nodeport-no-endpoints"
	otherAddresses   = "other-service-addresses"
	sourceRanges     = "source-ranges"
	refuse           = "refuse"
	priorityFirewall = -110
	priorityDNAT     = -100
	priorityFilter   = 0
	prioritySNAT     = 100
)

// constant returns the chains that do not depend on rows: those that are
// reached by jumps, and the base chains, which make the others live.
func (t *table) constant(n *proxy.Node, cidrs []netip.Prefix) (inner, base []*chain) {
	inner = []*chain{
		t.servicesChain(n),
		t.nodePortChain(nodePorts, t.nodePorts.dispatch, n),
		t.markClusterIPChain(n),
		t.markNodeChain(n),
		t.localOnlyChain(localOnly, &t.addresses, n),
		t.localOnlyChain(nodePortLocal, &t.nodePorts, n),
		t.chain(noEndpoints, t.rule().frontend(&t.addresses).vmap(t.addresses.empty).as("no endpoint to go to")),
		t.nodePortChain(nodePortEmpty, t.nodePorts.empty, n),
		t.otherAddressesChain(cidrs),
		t.sourceRangesChain(),
		t.chain(refuse, t.rule().reject().as("refused at once")),
	}
	return inner, t.hooks()
}

func (t *table) chain(name string, rules ...*nft.Rule) *chain {
	return &chain{Chain: nft.Chain{Name: name}, rules: rules}
}

// hooks returns the base chains.
func (t *table) hooks() []*chain {
	base := func(name, kind string, hook uint32, priority int32, rules ...*nft.Rule) *chain {
		c := t.chain(name, rules...)
		c.Hook = &nft.Hook{Type: kind, Number: hook, Priority: priority}
		return c
	}
	dispatch := func() *nft.Rule { return t.rule().jump(services).as("send connections to Services to an endpoint") }
	firewall := func() *nft.Rule { return t.rule().newFlow().jump(sourceRanges).as("loadBalancerSourceRanges") }
	empty := func() *nft.Rule { return t.rule().newFlow().jump(noEndpoints).as("Services without an endpoint") }
	others := func() *nft.Rule { return t.rule().newFlow().jump(otherAddresses).as("addresses of no Service port") }
	return []*chain{
		base("firewall-prerouting", "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall, firewall()),
		base("firewall-output", "filter", unix.NF_INET_LOCAL_OUT, priorityFirewall, firewall()),
		base("filter-input", "filter", unix.NF_INET_LOCAL_IN, priorityFilter, empty(),
			t.rule().newFlow().jump(nodePortEmpty).as("NodePorts without an endpoint")),
		base("filter-forward", "filter", unix.NF_INET_FORWARD, priorityFilter, empty(), others()),
		base("filter-output", "filter", unix.NF_INET_LOCAL_OUT, priorityFilter, empty(), others()),
		base("nat-postrouting", "nat", unix.NF_INET_POST_ROUTING, prioritySNAT,
			t.rule().marked().setMark(false).masquerade().as("marked on the way to an endpoint"),
			t.rule().translated().load(true).load(false).protocol().port().in(t.hairpins).masquerade().as("a pod sent to itself")),
		base("nat-prerouting", "nat", unix.NF_INET_PRE_ROUTING, priorityDNAT, dispatch()),
		base("nat-output", "nat", unix.NF_INET_LOCAL_OUT, priorityDNAT, dispatch()),
	}
}

func (t *table) servicesChain(n *proxy.Node) *chain {
	c := t.chain(services)
	if n.MasqueradeAll || n.LocalPods.Detects(t.family) {
		c.rules = append(c.rules, t.rule().load(false).in(t.clusterIPs).jump(markClusterIP).as("ClusterIPs hide clients that are not our pods"))
	}
	c.rules = append(c.rules,
		t.rule().frontend(&t.addresses).vmap(t.addresses.dispatch).as("by address"),
		t.rule().goTo(nodePorts).as("by NodePort"))
	return c
}

// nodePortChain looks protocol and port up for the node addresses that take
// NodePorts. Loopback never does.
func (t *table) nodePortChain(name string, m *nft.Set, n *proxy.Node) *chain {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if t.family == proxy.IPv6 {
		loopback = netip.MustParsePrefix("::1/128")
	}
	c := t.chain(name, t.rule().within(false, loopback).back().as("loopback takes no NodePorts"))
	for _, p := range proxy.PrefixesOf(n.NodePorts, t.family) {
		c.rules = append(c.rules,
			t.rule().within(false, p).local(false).frontend(&t.nodePorts).vmap(m).as("node addresses that take NodePorts"))
	}
	return c
}

func (t *table) markClusterIPChain(n *proxy.Node) *chain {
	c := t.chain(markClusterIP)
	if !n.MasqueradeAll {
		c.rules = t.ourPods(n, (*rule).back)
	}
	c.rules = append(c.rules, t.rule().setMark(true).as("masquerade"))
	return c
}

func (t *table) markNodeChain(n *proxy.Node) *chain {
	c := t.chain(markNode, t.ourPods(n, (*rule).back)...)
	c.rules = append(c.rules, t.rule().setMark(true).as("masquerade the node"))
	return c
}

// localOnlyChain keeps clients from elsewhere on the Local list: without one,
// the packet stays as it is and the filter drops it.
func (t *table) localOnlyChain(name string, s *space, n *proxy.Node) *chain {
	c := t.chain(name, t.ourPods(n, (*rule).back)...)
	c.rules = append(c.rules,
		t.rule().local(true).back().as("the node takes any endpoint"),
		t.rule().frontend(s).vmap(s.locals).as("others take local endpoints"),
		t.rule().accept().as("there is none"))
	return c
}

// ourPods returns rules that do something for our pods' traffic.
func (t *table) ourPods(n *proxy.Node, then func(*rule) *rule) []*nft.Rule {
	var rules []*nft.Rule
	for _, p := range n.LocalPods.SourcesOf(t.family) {
		rules = append(rules, then(t.rule().within(true, p)).as("our pods"))
	}
	if name := n.LocalPods.Interface; name != "" {
		rules = append(rules, then(t.rule().inBy(name, n.LocalPods.IsPrefix)).as("our pods"))
	}
	return rules
}

func (t *table) otherAddressesChain(cidrs []netip.Prefix) *chain {
	c := t.chain(otherAddresses,
		t.rule().load(false).in(t.clusterIPs).goTo(refuse).as("not a port of this Service"))
	for _, p := range proxy.PrefixesOf(cidrs, t.family) {
		c.rules = append(c.rules, t.rule().within(false, p).drop().as("no Service has this address"))
	}
	return c
}

func (t *table) sourceRangesChain() *chain {
	return t.chain(sourceRanges, t.rule().
		frontend(&t.addresses).in(t.restricted).
		frontend(&t.addresses).load(true).notIn(t.allowed).
		drop().as("not an allowed client"))
}

package nftables

import (
	"context"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Names of the chains that refuse NodePorts at loopback addresses.
const (
	loopbackFilter  = "loopback-nodeports"
	refusedLoopback = "refused-at-loopback"
)

// closedLoopbackChains returns the chains that refuse the node's own packets to NodePorts at
// loopback addresses which accept none. Those to addresses that accept them are translated before.
func (t *table) closedLoopbackChains(n *proxy.Node) []*chain {
	if !n.RefusesLoopback {
		return nil
	}
	c := t.chain(loopbackFilter)
	if within, except := n.NodePortAddresses(t.family); len(except) == 0 {
		for _, p := range within {
			c.rules = append(c.rules, t.rule().daddrIn(p).returns().comment("open here"))
		}
	}
	for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
		if n.Relays(p, t.family.Loopback().Addr()) {
			c.rules = append(c.rules, t.rule().protocolIs(byte(p)).returns().comment("relayed by the daemon"))
		}
	}
	for _, m := range []*nft.Set{t.nodePorts.dispatch, t.nodePorts.noEndpoints} {
		c.rules = append(c.rules, t.rule().frontend(&t.nodePorts).setPriorityFrom(m).goTo(refusedLoopback).comment("a NodePort"))
	}
	count := t.rule().protocol().add(&expr.Dynset{
		SrcRegKey: firstRegister, SetName: t.closedLoopback.Name, Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{&expr.Counter{}},
	}).comment("count")
	return []*chain{c, t.chain(refusedLoopback, count, t.rule().goTo(refuse).comment("closed at loopback addresses"))}
}

// closedLoopbackMetric counts what closedLoopbackChains refuse.
func (d *Dataplane) closedLoopbackMetric(ctx context.Context) proxy.Metric {
	return proxy.Metric{
		Name: "nftables_localhost_nodeport_rejected_packets_total", Help: "Packets to NodePorts that were refused at loopback addresses",
		Grows: true, Labels: []string{"ip_family", "protocol"},
		Read: func(yield func(float64, ...string)) {
			if d.reader == nil {
				return
			}
			for _, t := range d.tables {
				counted, err := d.reader.conn.Counters(ctx, t.closedLoopback)
				if err != nil { // before the first sync there is no table
					continue
				}
				for key, packets := range counted {
					yield(float64(packets), t.family.String(), proxy.Protocol(key[0]).String())
				}
			}
		},
	}
}

package iptables

import (
	"context"
	"slices"

	"sluice/internal/dataplane/kubeproxy"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/proxy"
)

// ipv4 returns the programs of IPv4, the family whose loopback addresses may take
// NodePorts; nil if it is not served.
func (d *Dataplane) ipv4() *family {
	i := slices.IndexFunc(d.families, func(f *family) bool { return f.Family == proxy.IPv4 })
	if i < 0 {
		return nil
	}
	return d.families[i]
}

// settleGuard returns the guard that a node's rules must have, and puts the
// setting back that needs it if loopback takes no NodePorts.
func (d *Dataplane) settleGuard(ctx context.Context, n *proxy.Node) localnet.Guard {
	if d.ipv4() == nil {
		return localnet.Guard{}
	}
	return d.localnet.Guard(ctx, n.OpensLoopback())
}

// openLoopback lets NodePorts of loopback addresses reach endpoints, once the
// guard is in force.
func (d *Dataplane) openLoopback(ctx context.Context) {
	d.loopback.Store(d.ipv4() != nil && d.node.OpensLoopback())
	if d.loopback.Load() {
		d.localnet.Open(ctx)
	}
}

// KeepsLoopback reports whether the setting that opens loopback is looked after
// here, whoever set it. Anybody may ask at any time.
func (d *Dataplane) KeepsLoopback() bool { return d.localnet.Settled() }

// loopbackGuard returns the rule that keeps others from loopback.
func loopbackGuard(g localnet.Guard) string {
	return "! -s 127.0.0.0/8 -d 127.0.0.0/8 " + comment(g.Comment(kubeproxy.GuardComment)) +
		"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
}

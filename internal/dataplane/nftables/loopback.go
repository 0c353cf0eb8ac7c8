package nftables

import (
	"context"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// routeLocalnet lets packets from loopback addresses leave the node, as those
// do that go to an endpoint before they are masqueraded. It also lets
// loopback addresses in from the wire (CVE-2020-8558), hence the guard.
const routeLocalnet = "net/ipv4/conf/all/route_localnet"

// loopback returns the loopback addresses of a family.
func loopback(f proxy.Family) netip.Prefix {
	if f == proxy.IPv6 {
		return netip.MustParsePrefix("::1/128")
	}
	return netip.MustParsePrefix("127.0.0.0/8")
}

// guard returns the rules that keep loopback addresses off the wire. They come
// before the translation of replies, which may well be for a loopback address.
func (t *table) guard(n *proxy.Node) []*nft.Rule {
	if t.family == proxy.IPv6 || !n.LocalhostNodePorts {
		return nil
	}
	return []*nft.Rule{
		t.rule().within(false, loopback(t.family)).fromWire().drop().comment("loopback is not for others"),
		t.rule().within(true, loopback(t.family)).fromWire().drop().comment("loopback is nobody else"),
	}
}

// fromWire matches what came in on another link than loopback.
func (r *rule) fromWire() *rule {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, "lo")
	r.add(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: firstRegister},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: name})
	return r.done()
}

// openLoopback lets the node's connections from loopback addresses reach
// endpoints, once the guard is in force. Where the setting cannot be changed,
// everything else works without.
func (d *Dataplane) openLoopback(ctx context.Context) {
	ipv4 := slices.ContainsFunc(d.tables, func(t *table) bool { return t.family == proxy.IPv4 })
	if d.sysctls == nil || !ipv4 || !d.node.OpensLoopback() {
		return
	}
	if on, err := sysctl.ReadInt(d.sysctls, routeLocalnet); err == nil && on == 1 {
		return
	}
	err := d.sysctls.Write(routeLocalnet, "1")
	if err != nil && !d.closed {
		klog.FromContext(ctx).Error(err, "NodePorts stay closed on loopback addresses, set it on the host or use --iptables-localhost-nodeports=false",
			"setting", routeLocalnet)
	}
	d.closed = err != nil
}

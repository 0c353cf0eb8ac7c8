package iptables

import (
	"context"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/kubeproxy"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// localnet is what has become of the host's setting by which connections of
// 127.0.0.1 to NodePorts reach endpoints. It is set after the rule is in force
// that keeps others from loopback, and put back before that goes.
type localnet struct {
	known  bool // whose the setting was when we came
	ours   bool // the setting is, or will be, a service proxy's and no one else's
	failed bool // it cannot be changed, and that was logged
	guard  bool // it could not be put back: the rule stays
}

// opensLoopback reports whether NodePorts of loopback addresses are served.
func opensLoopback(n *proxy.Node) bool {
	local := netip.MustParsePrefix("127.0.0.0/8")
	return n.LocalhostNodePorts && slices.ContainsFunc(n.NodePorts, local.Overlaps)
}

// settleLoopback finds out whose the setting is, by what a service proxy left
// in the tables, before they change. The rule carries the answer on, for the
// next daemon and for the one that removes it.
func (d *Dataplane) settleLoopback(ctx context.Context, saved []ipt.Table, v *view) {
	on, err := sysctl.ReadInt(d.sysctls, kubeproxy.RouteLocalnet)
	if err == nil && on != 1 || !d.localnet.known && kubeproxy.OpenedLoopback(saved) {
		d.localnet.ours = true
	}
	d.localnet.known = true
	if !v.localhost {
		d.closeLoopback(ctx)
	}
}

// openLoopback sets the setting, once the rule is in force. Where it cannot be
// changed, everything else works without.
func (d *Dataplane) openLoopback(ctx context.Context) {
	served := slices.ContainsFunc(d.families, func(f *family) bool { return f.Family == proxy.IPv4 })
	if !served || !opensLoopback(d.node) || !d.localnet.ours {
		return
	}
	if on, err := sysctl.ReadInt(d.sysctls, kubeproxy.RouteLocalnet); err == nil && on == 1 {
		return
	}
	d.writeLoopback(ctx, "1", "NodePorts stay closed on loopback addresses, set it on the host or use --iptables-localhost-nodeports=false")
}

// closeLoopback puts the setting back, if a service proxy set it.
func (d *Dataplane) closeLoopback(ctx context.Context) {
	d.localnet.guard = false
	on, err := sysctl.ReadInt(d.sysctls, kubeproxy.RouteLocalnet)
	if err != nil || on != 1 || !d.localnet.ours {
		return
	}
	d.localnet.guard = !d.writeLoopback(ctx, "0", "Loopback addresses stay open and guarded though no NodePort needs it, set it to 0 on the host")
}

func (d *Dataplane) writeLoopback(ctx context.Context, value, otherwise string) bool {
	err := d.sysctls.Write(kubeproxy.RouteLocalnet, value)
	if err != nil && !d.localnet.failed {
		klog.FromContext(ctx).Error(err, otherwise, "setting", kubeproxy.RouteLocalnet)
	}
	d.localnet.failed = err != nil
	return err == nil
}

// loopbackGuard returns the rule that keeps others from loopback.
func (d *Dataplane) loopbackGuard(v *view) []string {
	if v.family != proxy.IPv4 || !v.localhost && !d.localnet.guard {
		return nil
	}
	text := kubeproxy.GuardComment
	if d.localnet.ours {
		text = kubeproxy.OwnGuardComment
	}
	return []string{"! -s 127.0.0.0/8 -d 127.0.0.0/8 " + comment(text) + "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"}
}

package ebpf

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// untracking is the state of the option that conntrack does not track connections between
// pods. Connections that are translated at sockets need no tracking. Those that the rules
// translate do, and are recognised by their source port, which the rules choose from a
// range (nftables.FirstTrackedPort). So untracking becomes active only when no flow is left
// that was translated earlier, with any port.
type untracking struct {
	pods         []netip.Prefix // empty: everything is tracked
	flows        ct.Interface   // nil if pods is empty
	rulesInForce bool           // rules that choose such ports were written
	active       bool
	toggled      bool          // the last Sync changed active
	overlap      bool          // an address of a Service is within pods
	ready        chan struct{} // asks for a Sync, which may make it active
	loggedReason string        // why it is not active, as last logged
}

// overlay returns the nftables mode with the rules for untracking, if the settings ask for
// it.
func overlay(s mode.Settings, untracked func() nftables.Untracked) nftables.Overlay {
	o := nftables.Alone
	if len(s.EBPF.Untracked) > 0 {
		o.Untracked = untracked
	}
	return o
}

// untracked returns what the rules should leave untracked.
func (d *Dataplane) untracked() nftables.Untracked {
	return nftables.Untracked{Within: d.untracking.pods, Except: d.host.addrsWithin(d.untracking.pods), Begun: d.untracking.active}
}

// addrsWithin returns the node's own addresses within the ranges, sorted.
func (h *host) addrsWithin(ranges []netip.Prefix) []netip.Addr {
	out := slices.DeleteFunc(slices.Clone(h.addrs), func(a netip.Addr) bool { return !proxy.Contains(ranges, a) })
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// updateUntracking decides before a Sync whether untracking is active with it. Untracking
// also stops when older flows are found: another process may have removed rules, so that a
// flow was translated without such a port. On the first Sync of a daemon it is active if
// the rules of a former daemon have it.
func (d *Dataplane) updateUntracking(ctx context.Context, want *proxy.State) {
	u := &d.untracking
	if len(u.pods) == 0 {
		return
	}
	why, err := d.serviceOverlap(want, maps.Keys(want.Rows)), error(nil)
	was := u.active
	switch u.overlap = why != ""; {
	case u.overlap:
		u.active = false
	case d.node == nil:
		why = "the node's addresses are not known"
	case u.rulesInForce:
		why, err = d.olderFlows(ctx)
		u.active = why == "" && err == nil
	default:
		u.active, err = d.Dataplane.Untracks(ctx)
	}
	if err != nil {
		why = err.Error()
	}
	u.toggled = u.active != was
	switch log := klog.FromContext(ctx); {
	case u.active && !was:
		log.Info("Connections between pods are not tracked from now on", "pods", u.pods)
	case why != "" && why != u.loggedReason:
		log.Info("Connections between pods are tracked for now", "pods", u.pods, "reason", why)
	}
	u.loggedReason = why
}

// serviceOverlap returns which CIDR or address of Services is within the ranges of pods, as
// a reason not to be active: packets to it could not be translated. It checks the frontends
// of the given rows only.
func (d *Dataplane) serviceOverlap(want *proxy.State, rows iter.Seq[proxy.PortKey]) string {
	u := d.untracked()
	for _, c := range want.CIDRs {
		if slices.ContainsFunc(u.Within, c.Overlaps) {
			return fmt.Sprintf("the Service CIDR %v overlaps with the ranges of pods", c)
		}
	}
	var first netip.Addr // the lowest, so that the reason does not change with the order of rows
	for key := range rows {
		sp := want.Rows[key]
		if sp == nil {
			continue
		}
		for _, f := range sp.Frontends {
			if a := f.Addr.Addr(); proxy.Contains(u.Within, a) && !slices.Contains(u.Except, a) && (!first.IsValid() || a.Less(first)) {
				first = a
			}
		}
	}
	if !first.IsValid() {
		return ""
	}
	return fmt.Sprintf("the address %v of a Service is within the ranges of pods", first)
}

// olderFlows returns how many open flows between pods were translated without a port by
// which they are recognised, as a reason not to be active: their replies would not be
// translated back.
func (d *Dataplane) olderFlows(ctx context.Context) (string, error) {
	n, u := 0, d.untracked()
	err := d.untracking.flows.Each(ctx, func() { n = 0 }, func(f *ct.Flow) {
		from, to := f.Reply.Src.Addr(), f.Reply.Dst
		if f.Protocol != unix.IPPROTO_SCTP && !f.Closed && to.Port() < nftables.FirstTrackedPort &&
			proxy.Contains(u.Within, from) && proxy.Contains(u.Within, to.Addr()) && !slices.Contains(u.Except, to.Addr()) {
			n++
		}
	})
	if err != nil || n == 0 {
		return "", err
	}
	return fmt.Sprintf("flows that were translated earlier are still open: %d", n), nil
}

// rulesWritten records that a Sync has written the rules. After the first one it asks for
// another, unless untracking is already active.
func (d *Dataplane) rulesWritten() {
	u := &d.untracking
	if d.untrackedNow.Store(0); u.active {
		d.untrackedNow.Store(1)
	}
	if len(u.pods) > 0 && !u.rulesInForce {
		u.rulesInForce = true
		if !u.active {
			notify(u.ready)
		}
	}
}

// checkUntracking asks for a Sync if the flows that kept untracking from being active are
// gone.
func (d *Dataplane) checkUntracking(ctx context.Context) error {
	if u := &d.untracking; len(u.pods) == 0 || u.active || !u.rulesInForce || u.overlap {
		return nil
	}
	why, err := d.olderFlows(ctx)
	if err != nil {
		return err
	}
	if why == "" {
		notify(d.untracking.ready)
	}
	return nil
}

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

// untracking has the kernel not track connections between pods, if that is asked for:
// what sockets translate needs no tracking. What the rules translate does, and gets
// source ports by which it is known; it begins when no flow is left that is older.
type untracking struct {
	pods    []netip.Prefix // none: everything is tracked
	flows   ct.Interface   // nil as well
	ported  bool           // the rules give such ports
	begun   bool
	turned  bool          // by the last Sync: it began or ended
	overlap bool          // with addresses of Services
	may     chan struct{} // a Sync may begin
	saidWhy string        // why it did not begin
}

// rules returns the rules beneath as settings have them. They say what is not tracked
// only for a dataplane that has begun.
func rules(s mode.Settings, now func() nftables.Untracked) nftables.Overlay {
	o := nftables.Alone
	if len(s.EBPF.Untracked) > 0 {
		o.Untracked = now
	}
	return o
}

// untracked is what the rules are to leave untracked.
func (d *Dataplane) untracked() nftables.Untracked {
	return nftables.Untracked{Within: d.untracking.pods, Except: d.host.within(d.untracking.pods), Begun: d.untracking.begun}
}

// within returns the node's own addresses within ranges.
func (h *host) within(ranges []netip.Prefix) []netip.Addr {
	out := slices.DeleteFunc(slices.Clone(h.addrs), func(a netip.Addr) bool { return !proxy.Contains(ranges, a) })
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// beginUntracked begins if nothing is in the way, and ends if something is: others may
// have taken rules away, so that a flow was translated without a port. Rules that a
// former daemon left and that are the same have begun.
func (d *Dataplane) beginUntracked(ctx context.Context, want *proxy.State) {
	u := &d.untracking
	if len(u.pods) == 0 {
		return
	}
	why, err := d.overlaps(want, maps.Keys(want.Rows)), error(nil)
	was := u.begun
	switch u.overlap = why != ""; {
	case u.overlap:
		u.begun = false
	case d.state == nil:
		why = "the node's addresses are not known"
	case u.ported:
		why, err = d.olderFlows(ctx)
		u.begun = why == "" && err == nil
	default:
		u.begun, err = d.Dataplane.Untracks(ctx)
	}
	if err != nil {
		why = err.Error()
	}
	u.turned = u.begun != was
	switch log := klog.FromContext(ctx); {
	case u.begun && !was:
		log.Info("Connections between pods are not tracked", "pods", u.pods)
	case why != "" && why != u.saidWhy:
		log.Info("Connections between pods are tracked for now", "pods", u.pods, "because", why)
	}
	u.saidWhy = why
}

// overlaps says which address of Services is within the ranges of pods, if any: packets
// to it could not be translated.
func (d *Dataplane) overlaps(want *proxy.State, rows iter.Seq[proxy.PortKey]) string {
	u := d.untracked()
	for _, c := range want.CIDRs {
		if slices.ContainsFunc(u.Within, c.Overlaps) {
			return fmt.Sprintf("%v of Services overlaps with them", c)
		}
	}
	var first netip.Addr
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
	return fmt.Sprintf("a Service has %v, which is one of them", first)
}

// olderFlows says how many flows between pods are there that were translated before the
// rules gave them ports: their answers would not be known.
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
	return fmt.Sprintf("flows that were translated before are still open: %d", n), nil
}

// hasPorts notes that the rules give ports. If it has not begun, it may now.
func (d *Dataplane) hasPorts() {
	u := &d.untracking
	if d.untracks.Store(0); u.begun {
		d.untracks.Store(1)
	}
	if len(u.pods) > 0 && !u.ported {
		u.ported = true
		if !u.begun {
			notify(u.may)
		}
	}
}

// lookForOlder sees whether what was in the way is gone, and has a Sync begin then.
func (d *Dataplane) lookForOlder(ctx context.Context) error {
	if u := &d.untracking; len(u.pods) == 0 || u.begun || !u.ported || u.overlap {
		return nil
	}
	why, err := d.olderFlows(ctx)
	if err != nil {
		return err
	}
	if why == "" {
		notify(d.untracking.may)
	}
	return nil
}

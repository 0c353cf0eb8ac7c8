package iptables

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/nfacct"
)

// prepareCounters makes the counters that rules refer to. Where the kernel or
// the programs cannot count, packets go uncounted.
func (d *Dataplane) prepareCounters(ctx context.Context) error {
	if d.counters == nil {
		return nil
	}
	for _, name := range Counters() {
		err := d.counters.Ensure(name)
		if errors.Is(err, nfacct.ErrUnsupported) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("make counter %s: %w", name, err)
		}
	}
	if d.tried {
		return nil
	}
	for _, f := range d.families {
		reason, err := f.try(ctx, need{
			what: "counting packets", module: "xt_nfacct",
			rule: (&view{counts: true}).counted(InvalidDropped) + "-j RETURN",
		})
		if err != nil {
			return err
		}
		f.counts = reason == nil
		if reason != nil {
			klog.FromContext(ctx).Info("Packets are not counted", "family", f.Family.String(), "reason", reason.Error())
		}
	}
	d.tried = true
	return nil
}

// Packets returns what a counter has counted; an error that is an
// [errors.ErrUnsupported] where the kernel cannot.
func (d *Dataplane) Packets(counter string) (uint64, error) {
	if d.counters == nil {
		return 0, nfacct.ErrUnsupported
	}
	n, err := d.counters.Counter(counter)
	return n.Packets, err
}

// RemoveCounters removes the counters, if no rule uses them.
func RemoveCounters() error {
	counters, err := nfacct.Open()
	if errors.Is(err, nfacct.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	defer counters.Close()
	for _, name := range Counters() {
		err := counters.Delete(name)
		if err != nil && !errors.Is(err, nfacct.ErrNotFound) && !errors.Is(err, nfacct.ErrUnsupported) && !errors.Is(err, nfacct.ErrBusy) {
			return fmt.Errorf("remove counter %s: %w", name, err)
		}
	}
	return nil
}

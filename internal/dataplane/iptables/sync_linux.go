package iptables

import (
	"context"
	"errors"
	"maps"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// Sync makes the kernel right whatever was there before. It saves the tables
// and writes only what differs; what clients are remembered for stays.
func (d *Dataplane) Sync(ctx context.Context, s *proxy.State) (proxy.Refused, error) {
	return d.reach(ctx, &proxy.State{
		Rows: maps.Clone(s.Rows), HealthChecks: maps.Clone(s.HealthChecks), Node: s.Node, CIDRs: s.CIDRs,
	}, nil)
}

// reach syncs to a state, which it keeps. A row that is refused takes its
// earlier form if it has one, else it is left out.
func (d *Dataplane) reach(ctx context.Context, s *proxy.State, earlier map[proxy.PortKey]*proxy.ServicePort) (proxy.Refused, error) {
	d.node = nil // until the end, Apply has nothing to stand on
	refused := proxy.Refused{}
	for {
		err := d.sync(ctx, s)
		if err == nil {
			break
		}
		to, failed := d.blame(ctx, err, s.Rows)
		if failed != nil {
			return nil, failed
		}
		for row, reason := range to {
			if old := earlier[row]; old != nil && refused[row] == nil {
				s.Rows[row] = old
			} else {
				delete(s.Rows, row)
			}
			refused[row] = reason
		}
	}
	d.node, d.cidrs, d.rows, d.checks = s.Node, s.CIDRs, s.Rows, s.HealthChecks
	d.localnet.Open(ctx)
	d.tellAffinity(ctx)
	return refused, nil
}

// blame returns the rows that an error is about, and the error itself if it is
// about none.
func (d *Dataplane) blame(ctx context.Context, err error, rows map[proxy.PortKey]*proxy.ServicePort) (map[proxy.PortKey]error, error) {
	var r *refusal
	if errors.As(err, &r) && rows[r.row] != nil {
		return map[proxy.PortKey]error{r.row: r.err}, nil
	}
	var refused *ipt.RestoreError
	if !errors.As(err, &refused) {
		return nil, err
	}
	lacking, failed := d.lacking(ctx, rows)
	if failed != nil || len(lacking) == 0 {
		return nil, errors.Join(err, failed)
	}
	return lacking, nil
}

func (d *Dataplane) sync(ctx context.Context, s *proxy.State) error {
	for _, f := range d.families {
		alone, err := d.syncFamily(ctx, f, s)
		if err == nil && !alone {
			// What was saved may have been out of date by the time we wrote.
			_, err = d.syncFamily(ctx, f, s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// syncFamily writes what one family lacks, and reports whether no other process
// wrote meanwhile.
func (d *Dataplane) syncFamily(ctx context.Context, f *family, s *proxy.State) (alone bool, err error) {
	m, err := d.mending(ctx, f, s)
	if err != nil {
		return false, err
	}
	if _, err := f.restore(ctx, m.script); err != nil {
		return false, err
	}
	if alone, err = f.check(ctx, m.want.uses()); err != nil {
		return false, err
	}
	f.owned = map[string]int{}
	m.growth = m.want.rules()
	d.report(f, m.script)
	return alone, nil
}

// report counts what was written.
func (d *Dataplane) report(f *family, s *script) {
	for _, table := range []string{filter, nat} {
		f.owned[table] += s.growth[table]
		d.counts.wrote(table, f.Family, ruleCount{f.owned[table], s.rules(table)})
	}
}

// mending compares what a family has with what it should have.
func (d *Dataplane) mending(ctx context.Context, f *family, s *proxy.State) (*mending, error) {
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	tables, err := f.programs.Save(ctx)
	if err != nil {
		return nil, err
	}
	if f.Family == proxy.IPv4 {
		d.localnet.Find(ctx, loopbackOf(tables).traces())
		d.guard = d.localnet.Guard(ctx, s.Node.OpensLoopback())
	}
	return newMending(tables, d.target(f, s)), nil
}

// tellAffinity says once how many clients the kernel remembers. The number
// cannot be changed while the module is loaded.
func (d *Dataplane) tellAffinity(ctx context.Context) {
	if d.told {
		return
	}
	d.told = true
	if n, err := sysctl.ReadInt(d.sysctls, "/sys/module/xt_recent/parameters/ip_list_tot"); err == nil {
		klog.FromContext(ctx).Info("Session affinity remembers so many clients of each endpoint and then forgets the oldest, "+
			"load module xt_recent with ip_list_tot for more", "clients", n)
	}
}

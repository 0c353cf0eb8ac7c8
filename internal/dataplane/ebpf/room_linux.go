package ebpf

import (
	"context"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/differ"
	"sluice/internal/proxy"
)

// Rows for which the maps have no room are found before anything is written. The kernel
// would refuse one entry at a time, and each time all rows would have to be tried again.

// entryCounts counts entries of the maps that may be too small.
type entryCounts struct{ endpoints, members int }

func (e entryCounts) plus(o entryCounts) entryCounts {
	return entryCounts{e.endpoints + o.endpoints, e.members + o.members}
}

// fits reports whether the maps have room for that many entries in total.
func (d *Dataplane) fits(e entryCounts) bool {
	return e.endpoints <= int(d.kernel.Endpoints.MaxEntries()) && e.members <= int(d.kernel.Members.MaxEntries())
}

// maxEntries returns an upper bound of the entries of a row, without rendering it.
func maxEntries(sp *proxy.ServicePort) entryCounts {
	return entryCounts{len(sp.Cluster) + len(sp.Local), len(sp.Draining)}
}

// growth returns how many entries a change of a row adds, before it removes any. OldRulesOnly
// says whether the old row has no endpoints in the maps.
func (d *Dataplane) growth(old, cur differ.Row, oldRulesOnly bool) (grown entryCounts) {
	const row = 0 // any ID will do
	was, is := d.render(old, row, oldRulesOnly), d.render(cur, row, false)
	for scope, list := range is.lists {
		grown.endpoints += max(0, len(list)-len(was.lists[scope]))
	}
	had := drainingKeys(old.ServicePort, row, was)
	for k := range drainingKeys(cur.ServicePort, row, is) {
		if !had[k] {
			grown.members++
		}
	}
	return grown
}

// reserve checks whether there is room for rows beside the entries that are stored, and
// adds those for which there is none to nextRulesOnly. It goes in the order of their keys,
// so that it finds the same ones each time.
func (d *Dataplane) reserve(ctx context.Context, want *proxy.State, rows []proxy.PortKey, stored entryCounts) {
	bound := stored
	for _, key := range rows {
		if sp := want.Rows[key]; sp != nil {
			bound = bound.plus(maxEntries(sp))
		}
	}
	if d.fits(bound) {
		return
	}
	var without []proxy.PortKey
	for _, key := range slices.SortedFunc(slices.Values(rows), proxy.ComparePortKeys) {
		sp := want.Rows[key]
		if sp == nil || d.nextRulesOnly[key] {
			continue
		}
		with := stored.plus(d.growth(d.differ.Row(key), differ.Row{ServicePort: sp, Node: d.node}, d.rulesOnly[key]))
		if d.fits(with) {
			stored = with
			continue
		}
		d.nextRulesOnly[key] = true
		without = append(without, key)
	}
	logRulesOnly(ctx, without)
}

// loggedRows is how many rows without room are named in the log.
const loggedRows = 10

func logRulesOnly(ctx context.Context, rows []proxy.PortKey) {
	if len(rows) == 0 {
		return
	}
	var names []string
	for _, key := range rows[:min(len(rows), loggedRows)] {
		names = append(names, key.String())
	}
	klog.FromContext(ctx).Error(errFull, "The maps have no room for some Service ports, only the nftables rules serve them", "rows", len(rows), "first", names)
}

// retryRows writes rows again for which the kernel had no room, because what a former daemon
// had written is removed only after new rows are added. Those for which there still is none
// are left to the rules.
func (d *Dataplane) retryRows(ctx context.Context, want *proxy.State, refused proxy.Refused) (err error) {
	d.reserve(ctx, want, slices.Collect(maps.Keys(refused)), d.stored)
	for try := 0; try < 2 && err == nil && len(refused) > 0; try++ {
		rows := slices.SortedFunc(maps.Keys(refused), proxy.ComparePortKeys)
		if refused, err = d.differ.Apply(ctx, want, &proxy.Changed{Rows: rows}); len(refused) > 0 {
			for key := range refused {
				d.nextRulesOnly[key] = true
			}
			logRulesOnly(ctx, slices.SortedFunc(maps.Keys(refused), proxy.ComparePortKeys))
		}
	}
	if err == nil && len(refused) > 0 {
		err = errFull
	}
	return err
}

// recordRulesOnly updates rulesOnly after rows were written as nextRulesOnly has them.
func (d *Dataplane) recordRulesOnly(rows []proxy.PortKey) {
	for _, key := range rows {
		if d.nextRulesOnly[key] {
			d.rulesOnly[key] = true
		} else {
			delete(d.rulesOnly, key)
		}
	}
	d.rowsLeft.Store(int32(len(d.rulesOnly)))
}

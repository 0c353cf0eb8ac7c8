package ebpf

import (
	"context"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/differ"
	"sluice/internal/proxy"
)

// What has no room is known before it is written. A kernel that says so tells of
// one entry at a time, and each time all rows would have to be tried again.

// entries counts entries of maps.
type entries struct{ endpoints, members int }

func (e entries) plus(o entries) entries {
	return entries{e.endpoints + o.endpoints, e.members + o.members}
}

// fit reports whether there is room for so many.
func (d *Dataplane) fit(e entries) bool {
	return e.endpoints <= int(d.kernel.Endpoints.MaxEntries()) && e.members <= int(d.kernel.Members.MaxEntries())
}

// most bounds what a row takes, without rendering it.
func most(sp *proxy.ServicePort) entries {
	return entries{len(sp.Cluster) + len(sp.Local), len(sp.Draining)}
}

// growth is how many more entries a row takes in another form, at the moment when
// what comes has come and what goes has not gone.
func (d *Dataplane) growth(old, cur differ.Row, left bool) (grown entries) {
	const row = 0 // its number does not matter
	was, is := d.form(old, row, left), d.form(cur, row, false)
	for scope, list := range is.lists {
		grown.endpoints += max(0, len(list)-len(was.lists[scope]))
	}
	had := memberKeys(old.ServicePort, row, was)
	for k := range memberKeys(cur.ServicePort, row, is) {
		if !had[k] {
			grown.members++
		}
	}
	return grown
}

// reserve finds room for rows beside what is there, in their order, so that it is the
// same ones each time, and leaves those to the rules for which there is none.
func (d *Dataplane) reserve(ctx context.Context, want *proxy.State, rows []proxy.PortKey, there entries) {
	all := there
	for _, key := range rows {
		if sp := want.Rows[key]; sp != nil {
			all = all.plus(most(sp))
		}
	}
	if d.fit(all) {
		return
	}
	var out []proxy.PortKey
	for _, key := range slices.SortedFunc(slices.Values(rows), proxy.ComparePortKeys) {
		sp := want.Rows[key]
		if sp == nil || d.leave[key] {
			continue
		}
		with := there.plus(d.growth(d.differ.Row(key), differ.Row{ServicePort: sp, Node: d.state}, d.left[key]))
		if d.fit(with) {
			there = with
			continue
		}
		d.leave[key] = true
		out = append(out, key)
	}
	reportLeft(ctx, out)
}

// namedRows is how many rows without room a line of the log names.
const namedRows = 10

func reportLeft(ctx context.Context, rows []proxy.PortKey) {
	if len(rows) == 0 {
		return
	}
	var names []string
	for _, key := range rows[:min(len(rows), namedRows)] {
		names = append(names, key.String())
	}
	klog.FromContext(ctx).Error(errFull, "The rules serve some Services alone", "rows", len(rows), "first", names)
}

// retryRows writes rows once more that the kernel had no room for: what a former daemon
// left there went only after them. Those for which there is none now are left to the rules.
func (d *Dataplane) retryRows(ctx context.Context, want *proxy.State, refused proxy.Refused) (err error) {
	d.reserve(ctx, want, slices.Collect(maps.Keys(refused)), d.there)
	for try := 0; try < 2 && err == nil && len(refused) > 0; try++ {
		rows := slices.SortedFunc(maps.Keys(refused), proxy.ComparePortKeys)
		if refused, err = d.differ.Apply(ctx, want, &proxy.Changed{Rows: rows}); len(refused) > 0 {
			for key := range refused {
				d.leave[key] = true
			}
			reportLeft(ctx, slices.SortedFunc(maps.Keys(refused), proxy.ComparePortKeys))
		}
	}
	if err == nil && len(refused) > 0 {
		err = errFull
	}
	return err
}

// settleLeft notes which rows are left, now that maps say so.
func (d *Dataplane) settleLeft(rows []proxy.PortKey) {
	for _, key := range rows {
		if d.leave[key] {
			d.left[key] = true
		} else {
			delete(d.left, key)
		}
	}
	d.rowsLeft.Store(int32(len(d.left)))
}

package differ

import (
	"context"
	"maps"
	"slices"

	"sluice/internal/proxy"
)

// Inspect compares what the kernel has of a row with what was written, and also
// the objects for which constant returns true among those that do not depend on
// rows; constant may be nil. It returns the row, with a nil ServicePort if it is
// not in force.
func (d *Differ[ID, V]) Inspect(ctx context.Context, key proxy.PortKey, constant func(ID) bool) (row Row, out proxy.Inspected, err error) {
	want, have := map[ID]V{}, map[ID]V{}
	if row, err = d.Objects(key, func(id ID, v V) { want[id] = v }); err != nil {
		return row, out, err
	}
	for id, v := range d.constant {
		if constant != nil && constant(id) {
			want[id] = v
		}
	}
	if err = d.mode.Read(ctx, slices.Collect(maps.Keys(want)), func(id ID, v V) { have[id] = v }); err != nil {
		return row, out, err
	}
	var differences []proxy.Difference
	for id, v := range want {
		is, there := have[id]
		switch {
		case !there:
			differences = append(differences, d.mode.Difference(id, &v, nil))
		case !d.mode.Same(v, is):
			differences = append(differences, d.mode.Difference(id, &v, &is))
		}
		delete(have, id)
	}
	for id, is := range have {
		differences = append(differences, d.mode.Difference(id, nil, &is))
	}
	out.Add(len(want), differences...)
	return row, out, nil
}

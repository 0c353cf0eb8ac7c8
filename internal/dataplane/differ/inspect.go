package differ

import (
	"context"
	"maps"
	"slices"

	"sluice/internal/proxy"
)

// Inspect compares what a row has in the kernel with what was written, and beside
// it some of what does not depend on rows; nil: nothing of that. It returns the
// row, without a ServicePort if there is none.
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

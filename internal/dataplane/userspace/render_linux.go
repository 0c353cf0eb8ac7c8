package userspace

import (
	"context"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// Render prints what Sync would write: the rules, with the ports that are used if no other process
// has them, and the rows in the daemon's memory.
func Render(ctx context.Context, r *mode.Rendering) error {
	refused := unsupported(r.Want.Keys(), r.Want)
	r.Want = r.Want.Without(refused)
	if r.Diff {
		r.Remark("the rows in the daemon's memory are not compared")
	} else {
		r.Title("rows in the daemon's memory, from which it chooses endpoints")
		for _, k := range r.Want.Keys() {
			if r.Concerns([]*proxy.PortKey{&k}) {
				r.Remark("%v", r.Want.Rows[k])
			}
		}
	}
	r.Refused(refused)
	return usualPorts().Render(ctx, r)
}

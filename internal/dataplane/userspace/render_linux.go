package userspace

import (
	"context"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
)

// Render writes down what Sync would write: the rules, which lead to the ports that
// are taken if nobody else has them, and what the process has of each row.
func Render(ctx context.Context, r *mode.Rendering) error {
	refused := unserved(r.Want.Keys(), r.Want)
	r.Want = r.Want.Without(refused)
	if r.Diff {
		r.Remark("what the daemon has of each row is in its memory, and not compared")
	} else {
		r.Title("rows that the daemon finds endpoints by")
		for _, k := range r.Want.Keys() {
			if r.Concerns([]*proxy.PortKey{&k}) {
				r.Remark("%v", r.Want.Rows[k])
			}
		}
	}
	r.Refused(refused)
	return overlay(&nftables.Sockets{
		Ports: [2][2]uint16{{firstPort, firstPort + 1}, {firstPort + 2, firstPort + 3}},
	}).Render(ctx, r)
}

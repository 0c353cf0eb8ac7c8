package kernelspace

import (
	"context"
	"errors"
	"maps"
	"time"

	"sluice/internal/kernel/hns"
)

// watchInterval is how often the network is looked at: one call, no list.
const watchInterval = 30 * time.Second

// Watch notices when a network plugin replaces the network or moves its subnets,
// and when the service was restarted. Other changes nobody tells of: the next
// full Sync finds them.
func (d *Dataplane) Watch(ctx context.Context, _ func(), changed func(what string)) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if what := d.lookAtNetwork(ctx); what != "" {
			changed(what)
		}
	}
}

// lookAtNetwork returns what happened since the last Sync; empty: nothing.
func (d *Dataplane) lookAtNetwork(ctx context.Context) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.service.Network(ctx, d.options.Network)
	switch {
	case errors.Is(err, hns.ErrNotRunning):
		d.stopped = true
	case err != nil || d.has.network.ID == "":
	case d.stopped:
		d.stopped = false
		return "the Host Networking Service was restarted"
	case n.ID != d.has.network.ID:
		return "HNS network " + n.Name + " was replaced"
	case !maps.Equal(subnetsOf(n), d.has.subnets):
		return "the subnets of HNS network " + n.Name + " changed"
	}
	return ""
}

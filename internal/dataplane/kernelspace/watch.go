package kernelspace

import (
	"context"
	"errors"
	"maps"
	"time"

	"sluice/internal/kernel/hns"
)

// watchInterval is how often the network is read: one call, no list.
const watchInterval = 30 * time.Second

// Watch detects that a network plugin has replaced the network or changed its subnets, and that HNS
// was restarted. HNS does not announce other changes; the next full Sync finds them.
func (d *Dataplane) Watch(ctx context.Context, _ func(), changed func(what string)) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if what := d.checkNetwork(ctx); what != "" {
			changed(what)
		}
	}
}

// checkNetwork returns what changed since the last Sync, or an empty string.
func (d *Dataplane) checkNetwork(ctx context.Context) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.service.Network(ctx, d.options.Network)
	switch {
	case errors.Is(err, hns.ErrNotRunning):
		d.stopped = true
	case err != nil || d.inv.network.ID == "":
	case d.stopped:
		d.stopped = false
		return "the Host Networking Service was restarted"
	case n.ID != d.inv.network.ID:
		return "HNS network " + n.Name + " was replaced"
	case !maps.Equal(subnetsOf(n), d.inv.subnets):
		return "the subnets of HNS network " + n.Name + " changed"
	}
	return ""
}

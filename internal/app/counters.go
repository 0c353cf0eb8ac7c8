package app

import (
	"context"
	"sync/atomic"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane"
	"sluice/internal/dataplane/iptables"
	"sluice/internal/metrics"
	"sluice/internal/proxy"
)

// packets returns what reads the packets that a dataplane's rules have matched;
// nil if it does not count. Why they cannot be read is said once until they can.
func packets(ctx context.Context, d proxy.Dataplane) func() metrics.Packets {
	counting, ok := d.(interface {
		Packets(context.Context) (iptables.Packets, error)
	})
	if !ok {
		return nil
	}
	var failing atomic.Bool
	return func() metrics.Packets {
		n, err := counting.Packets(ctx)
		if was := failing.Swap(err != nil); err != nil && !was {
			klog.FromContext(ctx).Error(err, "Cannot read the packets that rules have matched")
		}
		return metrics.Packets(n)
	}
}

// affinityClients returns what counts the clients that a dataplane remembers;
// nil if it does not count.
func affinityClients(d proxy.Dataplane) func(context.Context, proxy.Family) (clients, room int, err error) {
	if counting, ok := d.(interface {
		AffinityClients(context.Context, proxy.Family) (clients, room int, err error)
	}); ok {
		return counting.AffinityClients
	}
	return nil
}

// cleanupFailed counts a stale chain that a dataplane could not delete.
func (s *ProxyServer) cleanupFailed(f proxy.Family) { s.metrics.NftablesCleanupFailure(f) }

// wrote passes on what a dataplane wrote.
func (s *ProxyServer) wrote(w dataplane.Written) {
	s.metrics.IPTablesRules(w.Table, w.Family, metrics.IPTablesCount{Owned: w.Owned, Written: w.Rules})
}

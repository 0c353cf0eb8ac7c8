package nftables

import (
	"context"
	"sync/atomic"

	"sluice/internal/proxy"
)

// counts is what went wrong, by family.
type counts struct {
	syncFailures, cleanupFailures [len(proxy.Families)]atomic.Int64
}

// SyncFailed counts a transaction that failed.
func (d *Dataplane) SyncFailed(bool) {
	for _, t := range d.tables {
		d.counts.syncFailures[t.family].Add(1)
	}
}

// Metrics returns what only this mode counts.
func (d *Dataplane) Metrics(ctx context.Context) []proxy.Metric {
	byFamily := func(m proxy.Metric, read func(*table) (value int, ok bool)) proxy.Metric {
		m.Labels = []string{"ip_family"}
		m.Read = func(yield func(float64, ...string)) {
			for _, t := range d.tables {
				if value, ok := read(t); ok {
					yield(float64(value), t.family.String())
				}
			}
		}
		return m
	}
	failures := func(name, help string, of *[len(proxy.Families)]atomic.Int64) proxy.Metric {
		return byFamily(proxy.Metric{Name: name, Help: help, Grows: true},
			func(t *table) (int, bool) { return int(of[t.family].Load()), true })
	}
	return []proxy.Metric{
		failures("sync_proxy_rules_nftables_sync_failures_total", "Transactions of nftables that failed", &d.counts.syncFailures),
		failures("sync_proxy_rules_nftables_cleanup_failures_total", "Deletions of stale nftables chains that failed", &d.counts.cleanupFailures),
		byFamily(proxy.Metric{Name: "nftables_affinity_clients", Help: "Clients that are remembered for session affinity"},
			func(t *table) (int, bool) {
				n, _, err := d.affinityClients(ctx, t.family)
				return n, err == nil // before the first sync there is nothing to count
			}),
		byFamily(proxy.Metric{
			Name: "nftables_affinity_clients_limit",
			Help: "Clients that can be remembered for session affinity; beyond, connections are balanced and not remembered",
		}, func(t *table) (int, bool) {
			_, room, err := d.affinityClients(ctx, t.family)
			return room, err == nil
		}),
	}
}

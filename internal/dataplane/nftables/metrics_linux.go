package nftables

import (
	"context"
	"sync"
	"time"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// SyncFailed implements [proxy.Measured].
func (d *Dataplane) SyncFailed(bool) {
	for _, t := range d.tables {
		t.syncFailures.Add(1)
	}
}

// Metrics implements [proxy.Measured]. Any goroutine may read the metrics.
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
	failures := func(name, help string, of func(*table) int64) proxy.Metric {
		return byFamily(proxy.Metric{Name: name, Help: help, Grows: true}, func(t *table) (int, bool) { return int(of(t)), true })
	}
	return []proxy.Metric{
		failures("sync_proxy_rules_nftables_sync_failures_total", "Transactions of nftables that failed",
			func(t *table) int64 { return t.syncFailures.Load() }),
		failures("sync_proxy_rules_nftables_cleanup_failures_total", "Deletions of stale nftables chains that failed",
			func(t *table) int64 { return t.cleanupFailures.Load() }),
		byFamily(proxy.Metric{Name: "nftables_affinity_clients", Help: "Clients that are remembered for session affinity"},
			func(t *table) (int, bool) { return d.reader.count(ctx, t) }),
		byFamily(proxy.Metric{
			Name: "nftables_affinity_clients_limit",
			Help: "Clients that can be remembered for session affinity; connections of further clients are balanced without being remembered",
		}, func(t *table) (int, bool) {
			_, ok := d.reader.count(ctx, t)
			return int(t.affinity.Size), ok
		}),
		d.closedLoopbackMetric(ctx),
	}
}

// reader reads from the kernel for metrics, traffic and Inspect. It has its own connection, so
// that it does not delay writes: on older kernels, counting takes long.
type reader struct {
	conn *nft.Conn

	mu     sync.Mutex
	counts map[proxy.Family]clientCount
}

// clientCount is a cached number of clients that are remembered for session affinity.
type clientCount struct {
	clients int
	until   time.Time // when to count again
}

// countCacheFactor bounds the CPU time of counting: a count is reused for this many times
// as long as counting took.
const countCacheFactor = 100

// count returns how many clients are remembered in a table. It reports false if that cannot
// be read, as before the first Sync. Any goroutine may call it; a nil reader reads nothing.
func (r *reader) count(ctx context.Context, t *table) (n int, ok bool) {
	if r == nil {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	start := time.Now()
	if last := r.counts[t.family]; start.Before(last.until) {
		return last.clients, true
	}
	n, err := r.conn.Count(ctx, t.affinity)
	if err != nil {
		return 0, false
	}
	r.counts[t.family] = clientCount{n, time.Now().Add(countCacheFactor * time.Since(start))}
	return n, true
}

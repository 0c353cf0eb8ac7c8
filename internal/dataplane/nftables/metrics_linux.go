package nftables

import (
	"context"
	"errors"
	"sync"
	"time"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

func (d *Dataplane) SyncFailed(bool) {
	for _, t := range d.tables {
		t.syncFailures.Add(1)
	}
}

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
			func(t *table) (int, bool) {
				n, err := d.clients.count(ctx, t)
				return n, err == nil // before the first sync there is nothing to count
			}),
		byFamily(proxy.Metric{
			Name: "nftables_affinity_clients_limit",
			Help: "Clients that can be remembered for session affinity; beyond, connections are balanced and not remembered",
		}, func(t *table) (int, bool) {
			_, err := d.clients.count(ctx, t)
			return int(t.affinity.Size), err == nil
		}),
	}
}

// clientCounter counts the clients that are remembered for session affinity. It
// has a connection of its own: on older kernels counting takes long.
type clientCounter struct {
	mu   sync.Mutex
	conn *nft.Conn
	last map[proxy.Family]clientCount
}

type clientCount struct {
	clients int
	until   time.Time // when to count again
}

// countPause is how much longer than counting took a count is taken for true:
// whoever asks often shall not keep a processor busy.
const countPause = 100

// count returns how many clients are remembered in a table. Any goroutine may ask.
func (c *clientCounter) count(ctx context.Context, t *table) (int, error) {
	if c == nil {
		return 0, errors.New("nobody counts")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	if last := c.last[t.family]; began.Before(last.until) {
		return last.clients, nil
	}
	n, err := c.conn.Count(ctx, t.affinity)
	if err != nil {
		return 0, err
	}
	c.last[t.family] = clientCount{n, time.Now().Add(countPause * time.Since(began))}
	return n, nil
}

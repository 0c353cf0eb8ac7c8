package nftables

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

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

// affinityClients returns how many clients are remembered for session affinity,
// and for how many there is room. Any goroutine may ask.
func (d *Dataplane) affinityClients(ctx context.Context, f proxy.Family) (clients, room int, err error) {
	for _, t := range d.tables {
		if t.family == f && d.clients != nil {
			clients, err = d.clients.count(ctx, t)
			return clients, int(t.affinity.Size), err
		}
	}
	return 0, 0, fmt.Errorf("%v is not served", f)
}

func (c *clientCounter) count(ctx context.Context, t *table) (int, error) {
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

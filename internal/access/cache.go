package access

import (
	"sync"
	"time"
)

// cache remembers values for a while, and a bounded number of them.
type cache[K comparable, V any] struct {
	limit int
	mu    sync.Mutex
	held  map[K]held[V]
}

type held[V any] struct {
	value   V
	expires time.Time
}

// get returns what is remembered, and whether that still counts.
func (c *cache[K, V]) get(key K) (value V, counts bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[key]
	return h.value, time.Now().Before(h.expires)
}

// set remembers a value. If there is no room, others are forgotten: those that
// no longer count, or else any.
func (c *cache[K, V]) set(key K, value V, lasts time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.held == nil {
		c.held = map[K]held[V]{}
	}
	if _, known := c.held[key]; !known && len(c.held) >= c.limit {
		c.makeRoom(now)
	}
	c.held[key] = held[V]{value, now.Add(lasts)}
}

func (c *cache[K, V]) makeRoom(now time.Time) {
	for key, h := range c.held {
		if !now.Before(h.expires) {
			delete(c.held, key)
		}
	}
	for key := range c.held {
		if len(c.held) < c.limit {
			return
		}
		delete(c.held, key)
	}
}

package access

import (
	"sync"
	"time"
)

// cache keeps at most limit values, each until it expires. It is safe for concurrent
// use.
type cache[K comparable, V any] struct {
	limit int

	mu      sync.Mutex
	entries map[K]entry[V]
}

type entry[V any] struct {
	value   V
	expires time.Time
}

// get returns the value of a key, even if it has expired, and whether it is valid.
func (c *cache[K, V]) get(key K) (value V, valid bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	return e.value, time.Now().Before(e.expires)
}

// set adds a value. If the cache is full, it evicts expired values or, if there are
// none, an arbitrary one.
func (c *cache[K, V]) set(key K, value V, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.entries == nil {
		c.entries = map[K]entry[V]{}
	}
	if _, known := c.entries[key]; !known && len(c.entries) >= c.limit {
		c.evict(now)
	}
	c.entries[key] = entry[V]{value, now.Add(ttl)}
}

func (c *cache[K, V]) evict(now time.Time) {
	for key, e := range c.entries {
		if !now.Before(e.expires) {
			delete(c.entries, key)
		}
	}
	for key := range c.entries {
		if len(c.entries) < c.limit {
			return
		}
		delete(c.entries, key)
	}
}

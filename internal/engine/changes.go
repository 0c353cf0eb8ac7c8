package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/internal/proxy"
)

const (
	// ChangesKept is how many of the last changes are remembered.
	ChangesKept = 1024

	// comparedEndpoints is up to how many endpoints of a row are compared to
	// say what changed: a change of many must not cost more for being told.
	comparedEndpoints = 256
)

// Change is a row that came, changed or went in the kernel.
type Change struct {
	Number  uint64        // grows by one with each change
	InForce time.Time     // when it was there
	Took    time.Duration // from when the daemon heard of it until then
	What    string        // Added, Changed or Removed
	Key     proxy.PortKey
	Detail  string
}

// changes remembers the last changes. It keeps no rows, which may be large.
type changes struct {
	ring [ChangesKept]Change
	n    uint64 // how many there were
}

func (c *changes) add(ch Change) {
	ch.Number = c.n + 1
	c.ring[c.n%ChangesKept] = ch
	c.n++
}

// last returns the last changes, the newest first, from the one before a number
// on; 0: from the newest.
func (c *changes) last(before uint64, limit int) []Change {
	if before == 0 || before > c.n {
		before = c.n + 1
	}
	oldest := c.n - min(c.n, ChangesKept) + 1
	var out []Change
	for i := before - 1; i >= oldest && len(out) < limit; i-- {
		out = append(out, c.ring[(i-1)%ChangesKept])
	}
	return out
}

// note remembers a step that is in force, whose rows were dirty until now. Of
// the many of a large one those that would be forgotten at once are not looked at.
func (c *changes) note(d *proxy.Delta, now time.Time, dirty map[proxy.PortKey]*RowStatus) {
	all := len(d.Removes) + len(d.Upserts)
	skip := max(0, all-ChangesKept)
	c.n += uint64(skip)
	take := func(n int) int { // how many of the next n are left out
		left := min(skip, n)
		skip -= left
		return left
	}
	for _, r := range d.Removes[take(len(d.Removes)):] {
		c.add(Change{InForce: now, Took: now.Sub(dirty[r.Key].Pending), What: "Removed", Key: r.Key})
	}
	for _, u := range d.Upserts[take(len(d.Upserts)):] {
		ch := Change{InForce: now, Took: now.Sub(dirty[u.New.Key].Pending), What: "Changed", Key: u.New.Key}
		if u.Old == nil {
			ch.What = "Added"
			u.Old = &proxy.ServicePort{}
		}
		ch.Detail = difference(u.Old, u.New)
		c.add(ch)
	}
}

// difference says in a few words what changed from one form of a row to another.
func difference(a, b *proxy.ServicePort) string {
	var words []string
	for _, l := range []struct {
		name     string
		from, to []proxy.Endpoint
	}{{"endpoints", a.Cluster, b.Cluster}, {"local endpoints", a.Local, b.Local}} {
		switch {
		case len(l.from) != len(l.to):
			words = append(words, fmt.Sprintf("%s %d to %d", l.name, len(l.from), len(l.to)))
		case len(l.from) > comparedEndpoints:
		default:
			if n := differing(l.from, l.to); n > 0 {
				words = append(words, fmt.Sprintf("%d of %d %s replaced", n, len(l.to), l.name))
			}
		}
	}
	if !slices.Equal(a.Frontends, b.Frontends) {
		words = append(words, "addresses")
	}
	if a.Internal != b.Internal || a.External != b.External || a.Affinity != b.Affinity || a.Balancing != b.Balancing ||
		a.HealthCheckPort != b.HealthCheckPort || a.PreserveDestination != b.PreserveDestination ||
		!slices.Equal(a.AllowFrom, b.AllowFrom) {
		words = append(words, "policy")
	}
	return strings.Join(words, ", ")
}

// differing counts the slots whose endpoints differ, in two lists of one length.
func differing(a, b []proxy.Endpoint) int {
	n := 0
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// Changes returns the last changes in the kernel, the newest first, from the one
// before a number on, and how many there were since the start; 0: from the newest.
func (e *Engine) Changes(before uint64, limit int) ([]Change, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table.changes.last(before, limit), e.table.changes.n
}

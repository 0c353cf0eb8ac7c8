package engine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/internal/proxy"
)

const (
	// ChangesKept is how many of the last changes are kept.
	ChangesKept = 1024

	// comparedEndpoints is the length up to which lists of endpoints are compared
	// to describe a change, so that describing one is cheap for any row.
	comparedEndpoints = 256
)

// Change is a row that was added, changed or removed in the kernel.
type Change struct {
	Number  uint64        // counts changes from 1
	InForce time.Time     // when the kernel had it
	Took    time.Duration // from when the daemon received the event until then
	What    string        // Added, Changed or Removed
	Key     proxy.PortKey
	Detail  string // what changed, in a few words
}

// changes is a ring of the last changes. It holds no rows, which may be large.
type changes struct {
	ring [ChangesKept]Change
	n    uint64 // how many changes there were in total
}

func (c *changes) add(ch Change) {
	ch.Number = c.n + 1
	c.ring[c.n%ChangesKept] = ch
	c.n++
}

// last returns up to limit changes, newest first, starting with the one before a
// number; 0 means starting with the newest.
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

// record adds the rows of a step that is in force now; dirty has their status until
// now. It skips those that the rest of a large step would overwrite.
func (c *changes) record(d *proxy.Delta, now time.Time, dirty map[proxy.PortKey]*RowStatus) {
	skip := max(0, len(d.Removes)+len(d.Upserts)-ChangesKept)
	c.n += uint64(skip)
	skippedRemoves := min(skip, len(d.Removes))
	for _, r := range d.Removes[skippedRemoves:] {
		c.add(Change{InForce: now, Took: now.Sub(dirty[r.Key].Pending), What: "Removed", Key: r.Key})
	}
	for _, u := range d.Upserts[skip-skippedRemoves:] {
		ch := Change{InForce: now, Took: now.Sub(dirty[u.New.Key].Pending), What: "Changed", Key: u.New.Key}
		if u.Old == nil {
			ch.What = "Added"
			u.Old = &proxy.ServicePort{}
		}
		ch.Detail = difference(u.Old, u.New)
		c.add(ch)
	}
}

// difference describes in a few words what changed from one version of a row to
// another.
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
			if n := countDifferent(l.from, l.to); n > 0 {
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

// countDifferent counts the slots whose endpoints differ, in two lists of equal length.
func countDifferent(a, b []proxy.Endpoint) int {
	n := 0
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// Changes returns up to limit changes in the kernel, newest first, starting with the
// one before a number (0 means starting with the newest), and how many there were
// since the start of the process.
func (e *Engine) Changes(before uint64, limit int) ([]Change, uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table.changes.last(before, limit), e.table.changes.n
}

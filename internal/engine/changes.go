package engine

import (
	"fmt"
	"strings"
	"time"

	"sluice/internal/proxy"
)

const (
	// ChangesKept is how many of the last changes are kept.
	ChangesKept = 1024

	// comparedEndpoints is the length up to which the differences of two lists are
	// counted, so that describing a change is cheap for any row.
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
	for _, part := range a.Changed(b) {
		switch part {
		case proxy.ClusterPart:
			words = append(words, listDifference("endpoints", a.Cluster, b.Cluster))
		case proxy.LocalPart:
			words = append(words, listDifference("local endpoints", a.Local, b.Local))
		case proxy.DrainingPart:
			words = append(words, listDifference("draining endpoints", a.Draining, b.Draining))
		case proxy.AddressesPart:
			words = append(words, "addresses")
		case proxy.PolicyPart:
			words = append(words, "policy")
		case proxy.ElsewherePart:
			if len(words) == 0 { // otherwise the lists tell it
				words = append(words, "endpoints on other nodes")
			}
		}
	}
	return strings.Join(words, ", ")
}

// listDifference describes what changed from one list to another.
func listDifference[E comparable](name string, from, to []E) string {
	switch {
	case len(from) != len(to):
		return fmt.Sprintf("%s %d to %d", name, len(from), len(to))
	case len(from) > comparedEndpoints:
		return name + " replaced"
	default:
		return fmt.Sprintf("%d of %d %s replaced", countDifferent(from, to), len(to), name)
	}
}

// countDifferent counts the places whose elements differ, in two lists of equal length.
func countDifferent[E comparable](a, b []E) int {
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

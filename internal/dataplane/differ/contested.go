package differ

import (
	"fmt"
	"maps"
	"slices"

	"sluice/internal/proxy"
)

// claims are the values that rows want of a contested object.
type claims[V any] map[proxy.PortKey]V

// first returns the row that decides about the object: the first by key, so that it is the
// same one after each Sync.
func (c claims[V]) first() proxy.PortKey { return slices.MinFunc(c.rows(), proxy.ComparePortKeys) }

func (c claims[V]) rows() []proxy.PortKey { return slices.Collect(maps.Keys(c)) }

// claim records that the row being rendered wants a contested object, or with nil that its
// earlier version wanted it.
func (c *Changes[ID, V]) claim(id ID, v *V) {
	if c.claims[id] == nil {
		c.claims[id] = map[proxy.PortKey]*V{}
	}
	if had := c.claims[id][*c.owner]; v != nil || had == nil {
		c.claims[id][*c.owner] = v
	}
}

// addContested adds the contested objects that rows want otherwise than before.
func (c *Changes[ID, V]) addContested(before map[ID]claims[V]) {
	for id, step := range c.claims {
		after := maps.Clone(before[id])
		if after == nil {
			after = claims[V]{}
		}
		for row, v := range step {
			if delete(after, row); v != nil {
				after[row] = *v
			}
		}
		if was := before[id]; len(was) > 0 {
			c.setOld(id, was[was.first()])
		}
		if c.contested[id] = after; len(after) > 0 {
			row := after.first()
			c.owner = &row
			c.setNew(id, after[row])
			c.owner = nil
		}
	}
}

// recordContested remembers what rows want of contested objects, and adds those that want
// something else than the first one to refused.
func (d *Differ[ID, V]) recordContested(c *Changes[ID, V], refused proxy.Refused) {
	for id, after := range c.contested {
		if d.claims[id] = after; len(after) == 0 {
			delete(d.claims, id)
			continue
		}
		first := after.first()
		for row, v := range after {
			if refused[row] == nil && !d.mode.Same(v, after[first]) {
				refused[row] = &proxy.PartialError{Err: fmt.Errorf("%v is as %v wants it, which shares it", id, first)}
			}
		}
	}
}

package differ

import (
	"cmp"
	"maps"
	"slices"

	"sluice/internal/proxy"
)

// Change is an object that is added, removed or gets another value.
type Change[ID comparable, V any] struct {
	ID       ID
	Old, New V
	Had, Has bool // whether there is an old value, and a new one

	owner *proxy.PortKey // the row that wants it; nil if none or several do
	order Order
}

// Row returns the row that wants the object, or decides about it if it is contested. It is
// the zero key if no single row does.
func (c *Change[ID, V]) Row() proxy.PortKey {
	if c.owner == nil {
		return proxy.PortKey{}
	}
	return *c.owner
}

// Order is when a change is written. Changes of a lower rank are written before
// those of a higher one. Changes of the same rank and the same group are never
// split into different parts, unless the group is empty.
type Order struct {
	Rank  int
	Group string
}

// Changes collects the changes of one step.
type Changes[ID comparable, V any] struct {
	mode  *Mode[ID, V]
	list  []*Change[ID, V]
	index map[ID]*Change[ID, V]
	chunk []Change[ID, V] // allocated but not used yet; a slice of values would be copied as it grows
	size  int             // of the new values
	owner *proxy.PortKey  // the row being rendered
	then  []func(written bool)

	uses    map[ID]*use[V] // of shared objects
	newUses []ID           // those of uses that addShared has not seen

	claims    map[ID]map[proxy.PortKey]*V // of contested objects by rows that are rendered; nil if a row wants it no longer
	contested map[ID]claims[V]            // by all rows, after this step
}

// use is by how many rows the use of a shared object grows or shrinks.
type use[V any] struct {
	delta int
	value V
	rows  []*proxy.PortKey // the new users
}

func newChanges[ID comparable, V any](m *Mode[ID, V]) *Changes[ID, V] {
	return &Changes[ID, V]{
		mode: m, index: map[ID]*Change[ID, V]{}, uses: map[ID]*use[V]{},
		claims: map[ID]map[proxy.PortKey]*V{}, contested: map[ID]claims[V]{},
	}
}

// Add records that the row being rendered wants an object.
func (c *Changes[ID, V]) Add(id ID, v V) {
	switch c.mode.Sharing(id) {
	case Unshared:
		c.setNew(id, v)
	case Contested:
		c.claim(id, &v)
	default:
		u := c.use(id, v)
		u.delta++
		if c.owner != nil {
			u.rows = append(u.rows, c.owner)
		}
	}
}

// Remove records that the earlier version of the row being rendered wanted an
// object. If Add is called with the same ID, the object stays or changes.
func (c *Changes[ID, V]) Remove(id ID, v V) {
	switch c.mode.Sharing(id) {
	case Unshared:
		c.setOld(id, v)
	case Contested:
		c.claim(id, nil)
	default:
		c.use(id, v).delta--
	}
}

// Then registers a function to be called when all changes have been written, or
// when they have been given up. Functions are called in reverse order.
func (c *Changes[ID, V]) Then(f func(written bool)) { c.then = append(c.then, f) }

func (c *Changes[ID, V]) setNew(id ID, v V) {
	x := c.change(id)
	x.New, x.Has, x.owner = v, true, c.owner
	c.size += c.mode.Size(x)
}

func (c *Changes[ID, V]) setOld(id ID, v V) {
	x := c.change(id)
	x.Old, x.Had = v, true
}

func (c *Changes[ID, V]) change(id ID) *Change[ID, V] {
	x := c.index[id]
	if x == nil {
		if len(c.chunk) == 0 {
			c.chunk = make([]Change[ID, V], min(max(4, len(c.list)), 256))
		}
		x, c.chunk = &c.chunk[0], c.chunk[1:]
		x.ID = id
		c.index[id] = x
		c.list = append(c.list, x)
	}
	return x
}

func (c *Changes[ID, V]) use(id ID, v V) *use[V] {
	u := c.uses[id]
	if u == nil {
		u = &use[V]{value: v}
		c.uses[id] = u
		c.newUses = append(c.newUses, id)
	}
	return u
}

// parts returns the changes whose rank is less than belowRank, in the order in which
// they are to be written. It is a single part if their size is within the limit.
func (c *Changes[ID, V]) parts(limit, belowRank int) (out [][]*Change[ID, V]) {
	var todo []*Change[ID, V]
	total := 0
	for _, x := range c.list {
		if c.unchanged(x) {
			continue
		}
		if x.order = c.mode.Order(c, x); x.order.Rank < belowRank {
			todo = append(todo, x)
			total += c.mode.Size(x)
		}
	}
	slices.SortStableFunc(todo, func(a, b *Change[ID, V]) int {
		return cmp.Or(cmp.Compare(a.order.Rank, b.order.Rank), cmp.Compare(a.order.Group, b.order.Group))
	})
	if total <= limit && len(todo) > 0 {
		return append(out, todo)
	}
	size := 0
	for from, to := 0, 0; to < len(todo); {
		size += c.mode.Size(todo[to])
		to++
		if to == len(todo) || c.maySplit(todo[to-1], todo[to], size >= limit) {
			out = append(out, todo[from:to])
			from, size = to, 0
		}
	}
	return out
}

// unchanged reports whether there is nothing to write.
func (c *Changes[ID, V]) unchanged(x *Change[ID, V]) bool {
	return x.Had && x.Has && c.mode.Same(x.Old, x.New)
}

// rewritten returns how many objects change, and which rows they belong to. It leaves
// out idle objects that are removed: we left them in the kernel ourselves.
func (c *Changes[ID, V]) rewritten() (out proxy.Rewritten) {
	rows := map[proxy.PortKey]bool{}
	for _, x := range c.list {
		if c.unchanged(x) || !x.Has && c.mode.MaxIdle > 0 && c.mode.Sharing(x.ID) == Lingers {
			continue
		}
		out.Objects++
		for _, key := range c.owners(x) {
			rows[*key] = true
		}
	}
	out.Rows = slices.SortedFunc(maps.Keys(rows), proxy.ComparePortKeys)
	return out
}

// maySplit reports whether two consecutive changes may be in different parts: where
// the rank passes that of the changes that put others into effect, and wherever a
// part is full, unless the changes are in the same group.
func (c *Changes[ID, V]) maySplit(a, b *Change[ID, V], full bool) bool {
	if cmp.Compare(a.order.Rank, c.mode.Live) != cmp.Compare(b.order.Rank, c.mode.Live) {
		return true
	}
	return full && (b.order.Group == "" || a.order != b.order)
}

// dropBelow drops the changes below a rank, which have been written.
func (c *Changes[ID, V]) dropBelow(rank int) {
	kept := c.list[:0]
	clear(c.index)
	c.size = 0
	for _, x := range c.list {
		if x.order.Rank >= rank {
			c.index[x.ID] = x
			kept = append(kept, x)
		}
	}
	clear(c.list[len(kept):])
	c.list = kept
}

// owners returns the rows that a change is for.
func (c *Changes[ID, V]) owners(x *Change[ID, V]) []*proxy.PortKey {
	if u := c.uses[x.ID]; u != nil {
		return u.rows
	}
	if all := c.contested[x.ID]; all != nil {
		var rows []*proxy.PortKey
		for _, key := range slices.SortedFunc(maps.Keys(all), proxy.ComparePortKeys) {
			rows = append(rows, &key)
		}
		return rows
	}
	if x.owner == nil {
		return nil
	}
	return []*proxy.PortKey{x.owner}
}

// done calls the functions that were passed to Then.
func (c *Changes[ID, V]) done(written bool) {
	for _, f := range slices.Backward(c.then) {
		f(written)
	}
	c.then = nil
}

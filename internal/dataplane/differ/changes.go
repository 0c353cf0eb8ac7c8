package differ

import (
	"cmp"
	"maps"
	"slices"

	"sluice/internal/proxy"
)

// Change is an object that is to become another, to come or to go.
type Change[ID comparable, V any] struct {
	ID       ID
	Old, New V
	Had, Has bool // whether there is an old value, and a new one

	owner *proxy.PortKey // the row that asked for it; nil: none, or several
	order Order
}

// Order is when a change is written. Changes of a lower rank are written before
// those of a higher one; those of the same rank and group, unless it is empty,
// are never parted.
type Order struct {
	Rank  int
	Group string
}

// Changes collects what is to be different.
type Changes[ID comparable, V any] struct {
	mode  *Mode[ID, V]
	list  []*Change[ID, V]
	index map[ID]*Change[ID, V]
	spare []Change[ID, V] // allocated together; a list of values would be copied as it grows
	uses  map[ID]*use[V]
	begun []ID // those of uses that share has not looked at
	size  int  // of what was added
	owner *proxy.PortKey
	then  []func(written bool)
}

// use is how many rows more or less share an object.
type use[V any] struct {
	by    int
	value V
	rows  []*proxy.PortKey // those that began to
}

func newChanges[ID comparable, V any](m *Mode[ID, V]) *Changes[ID, V] {
	return &Changes[ID, V]{mode: m, index: map[ID]*Change[ID, V]{}, uses: map[ID]*use[V]{}}
}

// Add says that the row that is rendered wants an object.
func (c *Changes[ID, V]) Add(id ID, v V) {
	if c.mode.Sharing(id) == Unshared {
		c.set(id, v)
		return
	}
	u := c.use(id, v)
	u.by++
	if c.owner != nil {
		u.rows = append(u.rows, c.owner)
	}
}

// Remove says that the row that is rendered wanted an object, and may want it
// no more.
func (c *Changes[ID, V]) Remove(id ID, v V) {
	if c.mode.Sharing(id) == Unshared {
		c.had(id, v)
	} else {
		c.use(id, v).by--
	}
}

// Then has f called when all changes are written, or when they are given up.
func (c *Changes[ID, V]) Then(f func(written bool)) { c.then = append(c.then, f) }

func (c *Changes[ID, V]) set(id ID, v V) {
	x := c.change(id)
	x.New, x.Has, x.owner = v, true, c.owner
	c.size += c.mode.Size(x)
}

func (c *Changes[ID, V]) had(id ID, v V) {
	x := c.change(id)
	x.Old, x.Had = v, true
}

func (c *Changes[ID, V]) change(id ID) *Change[ID, V] {
	x := c.index[id]
	if x == nil {
		if len(c.spare) == 0 {
			c.spare = make([]Change[ID, V], min(max(4, len(c.list)), 256))
		}
		x, c.spare = &c.spare[0], c.spare[1:]
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
		c.begun = append(c.begun, id)
	}
	return u
}

// part is what is written at once.
type part[ID comparable, V any] []*Change[ID, V]

// parts returns what is to be done below a rank, in order. It is one part if its
// size is within the limit.
func (c *Changes[ID, V]) parts(limit, below int) (out []part[ID, V]) {
	var todo part[ID, V]
	total := 0
	for _, x := range c.list {
		if c.isSame(x) {
			continue
		}
		if x.order = c.mode.Order(c, x); x.order.Rank < below {
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
		if to == len(todo) || c.mayPart(todo[to-1], todo[to], size >= limit) {
			out = append(out, todo[from:to])
			from, size = to, 0
		}
	}
	return out
}

// isSame reports whether there is nothing to write.
func (c *Changes[ID, V]) isSame(x *Change[ID, V]) bool {
	return x.Had && x.Has && c.mode.Same(x.Old, x.New)
}

// rewritten tells what is to be different, and for which rows.
func (c *Changes[ID, V]) rewritten() (out proxy.Rewritten) {
	rows := map[proxy.PortKey]bool{}
	for _, x := range c.list {
		if c.isSame(x) || !x.Has && c.mode.MaxIdle > 0 && c.mode.Sharing(x.ID) == Lingers { // which we left there
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

// mayPart reports whether two changes may be in different parts: if there is
// enough for one, or where things begin or cease to go live.
func (c *Changes[ID, V]) mayPart(a, b *Change[ID, V], enough bool) bool {
	if cmp.Compare(a.order.Rank, c.mode.Live) != cmp.Compare(b.order.Rank, c.mode.Live) {
		return true
	}
	return enough && (b.order.Group == "" || a.order != b.order)
}

// keep forgets the changes below a rank.
func (c *Changes[ID, V]) keep(from int) {
	kept := c.list[:0]
	clear(c.index)
	c.size = 0
	for _, x := range c.list {
		if x.order.Rank >= from {
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
	if x.owner == nil {
		return nil
	}
	return []*proxy.PortKey{x.owner}
}

// end calls what waits for the end, the last first.
func (c *Changes[ID, V]) end(written bool) {
	for _, f := range slices.Backward(c.then) {
		f(written)
	}
	c.then = nil
}

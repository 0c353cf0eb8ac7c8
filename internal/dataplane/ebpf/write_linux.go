package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/differ"
	"sluice/internal/proxy"
)

// batch is how much is written with one call.
const batch = 1 << 14

// errFull says that a map has no room.
var errFull = errors.New("there is no room in the map")

// objects says what entries of maps are to the differ.
func (d *Dataplane) objects() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: func(*proxy.State, func(id, value)) {},
		Row:      d.row,
		SameRows: sameRows,
		Same:     func(a, b value) bool { return a == b },
		Sharing:  func(id) differ.Sharing { return differ.Unshared },
		Order:    func(_ *changes, c *change) differ.Order { return differ.Order{Rank: rank(c)} },
		Size:     func(*change) int { return 1 },
		Limit:    func() int { return batch },
		Live:     1,
		List:     d.list,
		Write:    d.write,

		Read: d.read, Difference: difference,
	}
}

// sameRows reports whether rows are alike for two nodes: only whose ClusterIP
// traffic is masqueraded depends on them.
func sameRows(a, b *proxy.Node) bool {
	for _, f := range proxy.Families {
		x, y := proxy.CommonPolicy(f, proxy.ClusterIP, proxy.ScopeCluster, a), proxy.CommonPolicy(f, proxy.ClusterIP, proxy.ScopeCluster, b)
		for _, from := range proxy.Origins {
			if x[from].Masquerade != y[from].Masquerade {
				return false
			}
		}
	}
	return true
}

// rank has endpoints come before the frontends that lead to them, and go after.
func rank(c *change) int {
	switch {
	case c.ID.table == services:
		return 1
	case c.Has:
		return 0
	default:
		return 2
	}
}

// list gives what the maps have, and finds out which row is which.
func (d *Dataplane) list(_ context.Context, want *proxy.State, have func(id, value)) (rest func() error, empty bool, err error) {
	rows := map[frontendKey]uint32{}
	d.there = entries{}
	if d.kernel.fresh { // The kernel would look at as many places as there is room for.
		d.kernel.fresh = false
		d.number(want, rows)
		return nil, true, nil
	}
	err = errors.Join(
		each(d.kernel.Services, func(k frontendKey, v serviceValue) {
			rows[k] = binary.NativeEndian.Uint32(v[:])
			have(entry(services, k[:], v[:]))
		}),
		each(d.kernel.Endpoints, func(k slotKey, v endpoint) {
			d.there.endpoints++
			have(entry(endpoints, k[:], v[:]))
		}),
		each(d.kernel.Members, func(k memberKey, _ memberValue) {
			d.there.members++
			have(entry(members, k[:], nil))
		}))
	if err != nil {
		return nil, false, fmt.Errorf("list maps: %w", err)
	}
	d.number(want, rows)
	return nil, len(rows) == 0, nil
}

// number gives rows the numbers that their frontends have.
func (d *Dataplane) number(want *proxy.State, found map[frontendKey]uint32) {
	d.ids, d.used = make(map[proxy.PortKey]uint32, len(want.Rows)), map[uint32]bool{}
	taken := map[uint32]bool{}
	for _, n := range found {
		d.used[n] = true
	}
	for key, sp := range want.Rows {
		for _, f := range sp.Frontends {
			if n, ok := found[frontendOf(key.Protocol, f)]; ok && !taken[n] {
				d.ids[key], taken[n] = n, true
				break
			}
		}
	}
}

// each calls f for every entry of a map; without one there is none.
func each[K, V any](m *ebpf.Map, f func(K, V)) error {
	if m == nil {
		return nil
	}
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range n {
			f(keys[i], values[i])
		}
		if err != nil {
			return nil
		}
	}
}

// write makes changes of which programs keep nothing until all are there.
func (d *Dataplane) write(_ context.Context, some []*change) error {
	return d.kernel.change(func() error { return d.writeAll(some) })
}

// writeAll makes changes in their order, those of one map and kind with one call.
func (d *Dataplane) writeAll(some []*change) error {
	for from, to := 0, 0; from < len(some); from = to {
		for to = from; to < len(some) && some[to].ID.table == some[from].ID.table && some[to].Has == some[from].Has; to++ {
		}
		d.writes += to - from
		n, err := d.writeSome(some[from:to])
		switch {
		case errors.Is(err, unix.E2BIG) && some[from].ID.table != services:
			if err := d.undo(some[:from+n]); err != nil {
				return fmt.Errorf("%w: write maps: %w", proxy.ErrNeedSync, err)
			}
			return noRoom(some[from+n : to])
		case errors.Is(err, unix.E2BIG):
			return errFull
		case err != nil:
			return fmt.Errorf("%w: write maps: %w", proxy.ErrNeedSync, err)
		}
	}
	return nil
}

// noRoom refuses all that would be added. One row less does not make room for the
// next, and to try them one by one would take as many passes over all.
func noRoom(some []*change) error {
	refused := &differ.Refusal[id, value]{}
	for i, c := range some {
		if i == 0 || !c.Had {
			refused.Failures = append(refused.Failures, differ.Failure[id, value]{Change: c, Err: errFull})
		}
	}
	return refused
}

// undo takes changes back, the last first, so that what has no room takes none.
func (d *Dataplane) undo(done []*change) error {
	for _, c := range slices.Backward(done) {
		back := *c
		back.Old, back.New, back.Had, back.Has = c.New, c.Old, c.Has, c.Had
		if _, err := d.writeSome([]*change{&back}); err != nil {
			return err
		}
	}
	return nil
}

// writeSome makes changes of one map and kind, and returns how many were made.
func (d *Dataplane) writeSome(some []*change) (n int, err error) {
	switch some[0].ID.table {
	case services:
		return put[frontendKey, serviceValue](d.kernel.Services, some)
	case endpoints:
		n, err = put[slotKey, endpoint](d.kernel.Endpoints, some)
		d.there.endpoints += added(some[:n])
	default:
		n, err = put[memberKey, memberValue](d.kernel.Members, some)
		d.there.members += added(some[:n])
	}
	return n, err
}

// added returns how many entries more there are by changes.
func added(some []*change) (n int) {
	for _, c := range some {
		switch {
		case c.Has && !c.Had:
			n++
		case c.Had && !c.Has:
			n--
		}
	}
	return n
}

type bytesOf interface {
	~[4]byte | ~[8]byte | ~[20]byte | ~[24]byte
}

// put writes or deletes entries of a map.
func put[K, V bytesOf](m *ebpf.Map, some []*change) (int, error) {
	keys, values := make([]K, len(some)), make([]V, len(some))
	for i, c := range some {
		fill(&keys[i], c.ID.key)
		fill(&values[i], c.New)
	}
	if some[0].Has {
		n, err := m.BatchUpdate(keys, values, nil)
		if errors.Is(err, ebpf.ErrNotSupported) {
			return putEach(m, keys, values)
		}
		return n, err
	}
	for i, k := range keys {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return i, err
		}
	}
	return len(keys), nil
}

// putEach writes entries one by one. The library says that there are no batches, from
// then on and instead of whatever else goes wrong, when one fails and its own trial of
// them does so, too, be it for want of memory.
func putEach[K, V any](m *ebpf.Map, keys []K, values []V) (int, error) {
	for i, k := range keys {
		if err := m.Update(k, values[i], ebpf.UpdateAny); err != nil {
			return i, err
		}
	}
	return len(keys), nil
}

// fill copies as many bytes as there is room for.
func fill[T bytesOf](to *T, from [24]byte) {
	for i := range len(*to) {
		(*to)[i] = from[i]
	}
}

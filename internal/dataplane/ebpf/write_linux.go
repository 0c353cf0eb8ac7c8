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

// batchSize is how many entries are read or written with one system call.
const batchSize = 1 << 14

// errFull means that a map has no room for an entry.
var errFull = errors.New("the map is full")

// differMode returns the mode of the differ, whose objects are entries of maps.
func (d *Dataplane) differMode() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: func(*proxy.State, func(id, value)) {},
		Row:      d.diffRow,
		SameRows: sameRows,
		Same:     func(a, b value) bool { return a == b },
		Sharing:  func(id) differ.Sharing { return differ.Unshared },
		Order:    func(_ *changes, c *change) differ.Order { return differ.Order{Rank: rank(c)} },
		Size:     func(*change) int { return 1 },
		Limit:    func() int { return batchSize },
		Live:     1,
		List:     d.list,
		Write:    d.write,

		Read: d.read, Difference: difference,
	}
}

// sameRows reports whether rows are the same for two nodes. They depend on the node only
// in whose ClusterIP traffic is masqueraded.
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

// rank orders changes: endpoints are added before the frontends that refer to them, and
// removed after those.
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

// list passes the entries of the maps to have, and assigns the IDs that rows already have
// there. New maps are not read.
func (d *Dataplane) list(_ context.Context, want *proxy.State, have func(id, value)) (rest func() error, empty bool, err error) {
	rows := map[frontendKey]uint32{}
	d.stored = entryCounts{}
	if d.kernel.newMaps { // Reading would visit every bucket, though all are empty.
		d.kernel.newMaps = false
		d.assignIDs(want, rows)
		return nil, true, nil
	}
	counted := func(x id, v value) {
		d.reads++
		have(x, v)
	}
	err = errors.Join(
		forEach(d.kernel.Services, func(k frontendKey, v serviceValue) {
			rows[k] = binary.NativeEndian.Uint32(v[:])
			counted(entry(services, k[:], v[:]))
		}),
		forEach(d.kernel.Endpoints, func(k slotKey, v endpointValue) {
			d.stored.endpoints++
			counted(entry(endpoints, k[:], v[:]))
		}),
		forEach(d.kernel.Members, func(k memberKey, _ memberValue) {
			d.stored.members++
			counted(entry(members, k[:], nil))
		}))
	if err != nil {
		return nil, false, fmt.Errorf("list maps: %w", err)
	}
	d.assignIDs(want, rows)
	return nil, len(rows) == 0, nil
}

// assignIDs gives each row the ID that one of its frontends has in the maps. Rows without
// one get a new ID when they are rendered.
func (d *Dataplane) assignIDs(want *proxy.State, found map[frontendKey]uint32) {
	d.rowIDs, d.usedIDs = make(map[proxy.PortKey]uint32, len(want.Rows)), map[uint32]bool{}
	taken := map[uint32]bool{}
	for _, n := range found {
		d.usedIDs[n] = true
	}
	for key, sp := range want.Rows {
		for _, f := range sp.Frontends {
			if n, ok := found[makeFrontendKey(key.Protocol, f)]; ok && !taken[n] {
				d.rowIDs[key], taken[n] = n, true
				break
			}
		}
	}
}

// forEach calls f for every entry of a map. A nil map is empty.
func forEach[K, V any](m *ebpf.Map, f func(K, V)) error {
	if m == nil {
		return nil
	}
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batchSize), make([]V, batchSize)
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

// write makes changes. Programs cache nothing until all of them are made.
func (d *Dataplane) write(_ context.Context, some []*change) error {
	return d.kernel.writeMaps(func() error { return d.writeInOrder(some) })
}

// writeInOrder makes changes in their order. Consecutive changes that update the same map,
// or delete from it, are made together.
func (d *Dataplane) writeInOrder(some []*change) error {
	for from, to := 0, 0; from < len(some); from = to {
		for to = from; to < len(some) && some[to].ID.table == some[from].ID.table && some[to].Has == some[from].Has; to++ {
		}
		d.writes += to - from
		n, err := d.writeAlike(some[from:to])
		switch {
		case errors.Is(err, unix.E2BIG) && some[from].ID.table != services:
			if err := d.undo(some[:from+n]); err != nil {
				return fmt.Errorf("%w: write maps: %w", proxy.ErrNeedSync, err)
			}
			return refuseAdditions(some[from+n : to])
		case errors.Is(err, unix.E2BIG):
			return errFull
		case err != nil:
			return fmt.Errorf("%w: write maps: %w", proxy.ErrNeedSync, err)
		}
	}
	return nil
}

// refuseAdditions returns a refusal of the first change, for which there is no room, and of
// all others that add an entry. Without one row there is still no room for the next, and
// refusing them one by one would take a pass over all changes for each.
func refuseAdditions(some []*change) error {
	refused := &differ.Refusal[id, value]{}
	for i, c := range some {
		if i == 0 || !c.Had {
			refused.Failures = append(refused.Failures, differ.Failure[id, value]{Change: c, Err: errFull})
		}
	}
	return refused
}

// undo reverts changes, the last first, so that rows that are refused take no room.
func (d *Dataplane) undo(done []*change) error {
	for _, c := range slices.Backward(done) {
		back := *c
		back.Old, back.New, back.Had, back.Has = c.New, c.Old, c.Has, c.Had
		if _, err := d.writeAlike([]*change{&back}); err != nil {
			return err
		}
	}
	return nil
}

// writeAlike makes changes that all update, or all delete from, the same map. It returns
// how many were made.
func (d *Dataplane) writeAlike(some []*change) (n int, err error) {
	switch some[0].ID.table {
	case services:
		return put[frontendKey, serviceValue](d.kernel.Services, some)
	case endpoints:
		n, err = put[slotKey, endpointValue](d.kernel.Endpoints, some)
		d.stored.endpoints += added(some[:n])
	default:
		n, err = put[memberKey, memberValue](d.kernel.Members, some)
		d.stored.members += added(some[:n])
	}
	return n, err
}

// added returns by how many entries the changes make a map larger.
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

// byteArray is the type of a key or value of a map.
type byteArray interface {
	~[4]byte | ~[8]byte | ~[20]byte | ~[24]byte
}

// put writes entries of a map, or deletes them, depending on the first change. It returns
// how many it has written or deleted.
func put[K, V byteArray](m *ebpf.Map, some []*change) (int, error) {
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

// putEach writes entries one by one. It is used when the library reports that the kernel
// does not support batches, which may be wrong: the library probes the kernel when a batch
// fails, and if the probe fails too, for lack of memory for example, it reports that from
// then on, instead of the real error.
func putEach[K, V any](m *ebpf.Map, keys []K, values []V) (int, error) {
	for i, k := range keys {
		if err := m.Update(k, values[i], ebpf.UpdateAny); err != nil {
			return i, err
		}
	}
	return len(keys), nil
}

// fill copies the beginning of from, as many bytes as the array has.
func fill[T byteArray](to *T, from [24]byte) {
	for i := range len(*to) {
		(*to)[i] = from[i]
	}
}

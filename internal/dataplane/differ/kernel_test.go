package differ

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"sluice/internal/proxy"
)

// kernel is a fake kernel. It has lists, which rows may share, and doors, which refer to lists: a
// door whose list does not exist would lose packets.
type kernel struct {
	objects map[string]string
	limit   int
	fail    func(c *Change[string, string]) error // refuses a change; nil if nothing is refused
	answer  func() error                          // the error of a whole write; nil if writes succeed
	writes  int
	lists   int
	broken  []string
}

var (
	errRefused = errors.New("refused")
	errDrift   = errors.New("not as it was")
	errDown    = errors.New("nothing happened")
	errLost    = errors.New("the answer was lost")
)

const (
	door   = "door "   // of a row: refers to lists
	list   = "list "   // shared
	chosen = "chosen " // shared, lingers
	flag   = "flag "   // contested
	gate   = "gate"    // constant, puts all doors into effect
	check  = "check "
)

func (k *kernel) mode() Mode[string, string] {
	return Mode[string, string]{
		Constant: func(want *proxy.State, add func(string, string)) {
			add("base", want.Node.Name)
			add(gate, "")
		},
		Row:         k.row,
		HealthCheck: func(h *proxy.HealthCheck, add func(string, string)) { add(check+h.Key.Name, fmt.Sprint(h.Port)) },
		SameRows:    func(a, b *proxy.Node) bool { return a.Zone == b.Zone },
		Same:        func(a, b string) bool { return a == b },
		Sharing: func(id string) Sharing {
			switch {
			case strings.HasPrefix(id, list):
				return Shared
			case strings.HasPrefix(id, chosen):
				return Lingers
			case strings.HasPrefix(id, flag):
				return Contested
			default:
				return Unshared
			}
		},
		Order: order,
		Size:  func(*Change[string, string]) int { return 1 },
		Limit: func() int { return k.limit },
		Live:  10,
		List: func(_ context.Context, _ *proxy.State, have func(string, string)) (func() error, bool, error) {
			k.lists++
			if k.lists%2 == 0 { // alternate between listing at once and after rows have been rendered
				for id, v := range k.objects {
					have(id, v)
				}
				return nil, len(k.objects) == 0, nil
			}
			return func() error {
				for id, v := range k.objects {
					have(id, v)
				}
				return nil
			}, len(k.objects) == 0, nil
		},
		Write:   k.write,
		MaxIdle: 3,
	}
}

// row renders a door for each frontend, which refers to a list for each endpoint.
func (k *kernel) row(old, cur Row, out *Changes[string, string]) error {
	put := func(r Row, to func(string, string)) {
		if r.ServicePort == nil {
			return
		}
		var lists []string
		for _, e := range r.Cluster {
			lists = append(lists, list+e.Addr.String())
			to(list+e.Addr.String(), "")
		}
		if r.HealthCheckPort > 0 {
			to(flag+r.Key.Namespace, fmt.Sprint(r.HealthCheckPort))
		}
		class := fmt.Sprint(chosen, len(r.Cluster))
		to(class, "")
		for _, f := range r.Frontends {
			to(door+f.Addr.String(), strings.Join(append(lists, class), ",")+" in "+r.Node.Zone)
		}
	}
	switch {
	case old.ServicePort == nil && cur.ServicePort == nil:
		panic("rendered without a row")
	case cur.ServicePort != nil && cur.Affinity > 0:
		return errRefused
	}
	put(old, out.Remove)
	put(cur, out.Add)
	return nil
}

func order(_ *Changes[string, string], c *Change[string, string]) Order {
	rank := map[string]int{"base": 0, list: 1, chosen: 1, door: 2, check: 2, flag: 2, gate: 10}
	for prefix, r := range rank {
		if strings.HasPrefix(c.ID, prefix) {
			if !c.Has {
				r = 100 - r
			}
			return Order{Rank: r}
		}
	}
	return Order{Rank: 100}
}

func (k *kernel) write(_ context.Context, some []*Change[string, string]) error {
	k.writes++
	refusal := &Refusal[string, string]{}
	for _, c := range some {
		have, there := k.objects[c.ID]
		switch {
		case there != c.Had || there && have != c.Old:
			refusal.Failures = append(refusal.Failures, Failure[string, string]{c, errDrift, true})
		case k.fail != nil && k.fail(c) != nil:
			refusal.Failures = append(refusal.Failures, Failure[string, string]{c, k.fail(c), false})
		}
	}
	if len(refusal.Failures) > 0 {
		return refusal
	}
	if k.answer != nil {
		if err := k.answer(); errors.Is(err, errDown) {
			return err
		} else if err != nil {
			k.take(some)
			return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
		}
	}
	k.take(some)
	return nil
}

func (k *kernel) take(some []*Change[string, string]) {
	for _, c := range some {
		if delete(k.objects, c.ID); c.Has {
			k.objects[c.ID] = c.New
		}
	}
	if _, live := k.objects[gate]; !live {
		return
	}
	for id, v := range k.objects {
		if to, _, ok := strings.Cut(v, " in "); ok {
			for _, l := range strings.Split(to, ",") {
				if _, there := k.objects[l]; !there {
					k.broken = append(k.broken, id+" refers to missing "+l)
				}
			}
		}
	}
}

// want returns the objects that the kernel should have for a state, without idle ones.
func want(s *proxy.State, without proxy.Refused) map[string]string {
	k := &kernel{objects: map[string]string{}, limit: 1 << 20}
	some := &proxy.State{Rows: maps.Clone(s.Rows), Node: s.Node, HealthChecks: s.HealthChecks}
	maps.DeleteFunc(some.Rows, func(key proxy.PortKey, _ *proxy.ServicePort) bool { return without[key] != nil })
	if _, err := New(k.mode()).Sync(context.Background(), some); err != nil {
		panic(err)
	}
	return k.objects
}

// used returns the objects that the kernel has, without idle ones.
func (k *kernel) used(want map[string]string) map[string]string {
	out := maps.Clone(k.objects)
	maps.DeleteFunc(out, func(id, _ string) bool { _, ok := want[id]; return !ok && strings.HasPrefix(id, chosen) })
	return out
}

// state returns a random state of a few rows that share endpoints and hand over frontends. About
// half of the rows are those of the last state.
func state(r *rand.Rand, last *proxy.State) *proxy.State {
	s := proxy.NewState()
	s.Node = &proxy.Node{Name: fmt.Sprint("node-", r.IntN(2)), Zone: fmt.Sprint("zone-", r.IntN(2))}
	s.HealthChecks = map[proxy.HealthCheckKey]*proxy.HealthCheck{}
	free := r.Perm(12)
	for i := range 8 {
		if old := last.Rows[key(i)]; old != nil && r.IntN(2) == 0 {
			s.Rows[old.Key] = old
			s.HealthChecks[proxy.HealthCheckKey{Name: old.Key.Name}] = last.HealthChecks[proxy.HealthCheckKey{Name: old.Key.Name}]
			for _, f := range old.Frontends {
				free = slices.DeleteFunc(free, func(n int) bool { return at(172, n) == f.Addr })
			}
		}
	}
	for i := range 8 {
		if s.Rows[key(i)] != nil || r.IntN(3) == 0 {
			continue
		}
		sp := &proxy.ServicePort{Key: key(i)}
		for range r.IntN(3) {
			if len(free) > 0 {
				sp.Frontends = append(sp.Frontends, proxy.Frontend{Addr: at(172, free[0])})
				free = free[1:]
			}
		}
		for _, e := range r.Perm(6)[:r.IntN(4)] {
			sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: at(10, e)})
		}
		if r.IntN(12) == 0 {
			sp.Affinity = 1 // the mode refuses it
		}
		s.Rows[sp.Key] = sp
		h := &proxy.HealthCheck{Key: proxy.HealthCheckKey{Name: sp.Key.Name}, Port: uint16(r.IntN(3))}
		s.HealthChecks[h.Key] = h
	}
	return s
}

func key(i int) proxy.PortKey {
	return proxy.PortKey{ServicePortName: proxy.ServicePortName{Name: fmt.Sprint("svc-", i)}}
}

func at(net byte, i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{net, 0, 0, byte(i)}), 80)
}

// changed returns what differs between two states, and the dirty rows.
func changed(a, b *proxy.State, dirty map[proxy.PortKey]bool) *proxy.Changed {
	c := &proxy.Changed{Node: a.Node.Name != b.Node.Name || a.Node.Zone != b.Node.Zone}
	rows := maps.Clone(dirty)
	for _, s := range []*proxy.State{a, b} {
		for key := range s.Rows {
			if a.Rows[key] != b.Rows[key] {
				rows[key] = true
			}
		}
		for key := range s.HealthChecks {
			if a.HealthChecks[key] != b.HealthChecks[key] && !slices.Contains(c.HealthChecks, key) {
				c.HealthChecks = append(c.HealthChecks, key)
			}
		}
	}
	c.Rows = slices.SortedFunc(maps.Keys(rows), proxy.ComparePortKeys)
	return c
}

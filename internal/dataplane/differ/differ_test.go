package differ

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/proxy"
)

// TestRandomFailures makes random steps with a kernel that refuses rows, loses answers, fails or
// is changed by other processes, in parts of any size. A caller that reacts to errors as
// documented ends with the wanted state, and no live object ever refers to a missing one.
func TestRandomFailures(t *testing.T) {
	seeds := uint64(3000)
	if testing.Short() {
		seeds = 300
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		k := &kernel{objects: map[string]string{}, limit: []int{1, 3, 1 << 20}[r.IntN(3)]}
		d := New(k.mode())
		last, dirty, full := proxy.NewState(), map[proxy.PortKey]bool{}, true
		var refused proxy.Refused
		for step := range 12 {
			next := state(r, last)
			foreign := false
			trouble(r, k)
			for try := 0; ; try++ {
				if try > 20 {
					t.Fatalf("seed %d step %d: no success after 20 attempts", seed, step)
				}
				if try > 3 {
					k.answer = nil
				}
				if r.IntN(8) == 0 && len(k.objects) > 0 && try == 0 {
					vandalise(r, k)
					foreign = true
				}
				var err error
				if full {
					refused, err = d.Sync(t.Context(), next)
				} else {
					refused, err = d.Apply(t.Context(), next, changed(last, next, dirty))
				}
				if err == nil {
					break
				}
				if full && k.fail == nil && k.answer == nil {
					t.Fatalf("seed %d step %d: an error although nothing fails: %v", seed, step, err)
				}
				full = full || errors.Is(err, proxy.ErrNeedSync)
			}
			failing := k.fail != nil
			if foreign { // Apply repairs only what it touches
				k.fail, k.answer = nil, nil
				if _, err := d.Sync(t.Context(), next); err != nil {
					t.Fatalf("seed %d step %d: %v", seed, step, err)
				}
			}
			full = false
			for key, err := range refused {
				if dirty[key] = true; errors.Is(err, errDrift) || !failing && next.Rows[key].Affinity == 0 {
					t.Fatalf("seed %d step %d: %v is refused (%v), but nothing is wrong with it", seed, step, key, err)
				}
			}
			last = next
			if foreign || len(refused) > 0 {
				full = true
				continue
			}
			w := want(next, refused)
			if diff := cmp.Diff(w, k.used(w)); diff != "" {
				t.Fatalf("seed %d step %d (-want +got):\n%s", seed, step, diff)
			}
			if len(k.broken) > 0 {
				t.Fatalf("seed %d step %d: %s", seed, step, strings.Join(k.broken, "; "))
			}
		}
	}
}

// trouble makes the kernel fail in a random way for one step.
func trouble(r *rand.Rand, k *kernel) {
	k.fail, k.answer, k.broken = nil, nil, nil
	switch r.IntN(5) {
	case 0:
		bad := door + at(172, r.IntN(12)).String()
		k.fail = func(c *Change[string, string]) error {
			if c.Has && c.ID == bad {
				return errRefused
			}
			return nil
		}
	case 1:
		bad := list + at(10, r.IntN(6)).String()
		k.fail = func(c *Change[string, string]) error {
			if c.Has && c.ID == bad {
				return errRefused
			}
			return nil
		}
	case 2:
		n := r.IntN(4)
		err := []error{errDown, errLost}[r.IntN(2)]
		k.answer = func() error {
			if n--; n == 0 {
				return err
			}
			return nil
		}
	}
}

// vandalise changes or removes one object, as another process would.
func vandalise(r *rand.Rand, k *kernel) {
	for id := range k.objects {
		if r.IntN(2) == 0 {
			delete(k.objects, id)
		} else {
			k.objects[id] = "foreign"
		}
		k.broken = nil
		return
	}
}

// TestRefusedRowsAreLeftOut has the kernel refuse one door and one list. The rows that want
// them must be refused, and all others in force.
func TestRefusedRowsAreLeftOut(t *testing.T) {
	row := func(i, endpoint int) *proxy.ServicePort {
		return &proxy.ServicePort{
			Key:       key(i),
			Frontends: []proxy.Frontend{{Addr: at(172, i)}},
			Cluster:   []proxy.Endpoint{{Addr: at(10, endpoint)}},
		}
	}
	for _, way := range []string{"Sync", "Apply"} {
		for _, limit := range []int{1, 1 << 20} {
			s := proxy.NewState()
			k := &kernel{objects: map[string]string{}, limit: limit}
			d := New(k.mode())
			if way == "Apply" {
				if _, err := d.Sync(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			next := proxy.NewState()
			for i, endpoint := range []int{0, 1, 1, 2} {
				next.Rows[key(i)] = row(i, endpoint)
			}
			k.fail = func(c *Change[string, string]) error {
				if c.ID == door+at(172, 0).String() || c.ID == list+at(10, 1).String() {
					return errRefused
				}
				return nil
			}
			var refused proxy.Refused
			var err error
			if way == "Apply" {
				refused, err = d.Apply(t.Context(), next, changed(s, next, map[proxy.PortKey]bool{}))
				if limit == 1 && errors.Is(err, proxy.ErrNeedSync) {
					refused, err = d.Sync(t.Context(), next)
				}
			} else {
				refused, err = d.Sync(t.Context(), next)
			}
			if err != nil || len(refused) != 3 || refused[key(3)] != nil {
				t.Errorf("%s in parts of %d: refused %v, error %v; want the first three", way, limit, refused, err)
			}
			w := want(next, refused)
			if diff := cmp.Diff(w, k.used(w)); diff != "" {
				t.Errorf("%s in parts of %d (-want +got):\n%s", way, limit, diff)
			}
		}
	}
}

// TestRefusedRowsStayOnTheirNode has the kernel refuse a row when the node changes. The row must
// be written when it is tried again.
func TestRefusedRowsStayOnTheirNode(t *testing.T) {
	k := &kernel{objects: map[string]string{}, limit: 1 << 20}
	d := New(k.mode())
	s := proxy.NewState()
	s.Rows[key(0)] = &proxy.ServicePort{Key: key(0), Frontends: []proxy.Frontend{{Addr: at(172, 0)}}}
	if _, err := d.Sync(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	k.fail = func(c *Change[string, string]) error {
		if strings.HasPrefix(c.ID, door) {
			return errRefused
		}
		return nil
	}
	for _, name := range []string{"a", "b"} { // for the second, rows are the same as for the first
		s.Node = &proxy.Node{Name: name, Zone: "zone-1"}
		refused, err := d.Apply(t.Context(), s, &proxy.Changed{Node: true})
		if err != nil || refused[key(0)] == nil {
			t.Fatalf("refused %v, error %v; want the row refused", refused, err)
		}
	}
	k.fail = nil
	if refused, err := d.Apply(t.Context(), s, &proxy.Changed{Rows: []proxy.PortKey{key(0)}}); err != nil || len(refused) > 0 {
		t.Fatalf("refused %v, error %v", refused, err)
	}
	if got := k.objects[door+at(172, 0).String()]; !strings.HasSuffix(got, "zone-1") {
		t.Errorf("the row is %q after it was tried again; want it as for the new node", got)
	}
}

// TestRefusedRowIsRemoved removes a row of which the kernel has nothing.
func TestRefusedRowIsRemoved(t *testing.T) {
	k := &kernel{objects: map[string]string{}, limit: 1 << 20}
	d := New(k.mode())
	s := proxy.NewState()
	s.Rows[key(0)] = &proxy.ServicePort{Key: key(0), Affinity: 1} // the mode refuses it
	if refused, err := d.Sync(t.Context(), s); err != nil || refused[key(0)] == nil {
		t.Fatalf("refused %v, error %v; want the row refused", refused, err)
	}
	k.writes = 0
	refused, err := d.Apply(t.Context(), proxy.NewState(), &proxy.Changed{Rows: []proxy.PortKey{key(0)}})
	if err != nil || len(refused) > 0 || k.writes > 0 {
		t.Errorf("refused %v, %d writes, error %v; want nothing to happen", refused, k.writes, err)
	}
}

// TestFrontendsOfRefusedRows has a row get a frontend that a refused row still has. Apply must
// ask for a Sync: the kernel would not refuse it, because the refused row is rewritten for the
// new node.
func TestFrontendsOfRefusedRows(t *testing.T) {
	for _, together := range []bool{true, false} {
		k := &kernel{objects: map[string]string{}, limit: 1 << 20}
		d := New(k.mode())
		s := proxy.NewState()
		f := []proxy.Frontend{{Addr: at(172, 0)}}
		s.Rows[key(0)] = &proxy.ServicePort{Key: key(0), Frontends: f}
		if _, err := d.Sync(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		s.Rows[key(0)] = &proxy.ServicePort{Key: key(0), Affinity: 1} // the mode refuses it
		change := &proxy.Changed{Rows: []proxy.PortKey{key(0)}}
		if !together {
			if refused, err := d.Apply(t.Context(), s, change); err != nil || refused[key(0)] == nil {
				t.Fatalf("refused %v, error %v; want the row refused", refused, err)
			}
			change.Rows = nil
		}
		s.Rows[key(1)] = &proxy.ServicePort{Key: key(1), Frontends: f, Cluster: []proxy.Endpoint{{Addr: at(10, 0)}}}
		s.Node = &proxy.Node{Zone: "zone-1"}
		change.Rows, change.Node = append(change.Rows, key(1)), true
		if _, err := d.Apply(t.Context(), s, change); !errors.Is(err, proxy.ErrNeedSync) {
			t.Errorf("together %v: error %v; want one that asks for a Sync", together, err)
		}
		refused, err := d.Sync(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want(s, refused), k.objects); diff != "" {
			t.Errorf("together %v (-want +got):\n%s", together, diff)
		}
	}
}

// TestCost checks that Apply writes only what changed and lists nothing, and that a second Sync
// writes nothing.
func TestCost(t *testing.T) {
	s := proxy.NewState()
	for i := range 200 {
		s.Rows[key(i)] = &proxy.ServicePort{Key: key(i), Frontends: []proxy.Frontend{{Addr: at(172, i)}}, Cluster: []proxy.Endpoint{{Addr: at(10, i)}}}
	}
	k := &kernel{objects: map[string]string{}, limit: 1 << 20}
	d := New(k.mode())
	if _, err := d.Sync(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	k.writes, k.lists = 0, 0
	if _, err := d.Sync(t.Context(), s); err != nil || k.writes != 0 {
		t.Errorf("a second Sync made %d writes, error %v", k.writes, err)
	}
	k.lists = 0
	s.Rows[key(7)] = &proxy.ServicePort{Key: key(7), Frontends: s.Rows[key(7)].Frontends, Cluster: []proxy.Endpoint{{Addr: at(11, 7)}}}
	touched := 0
	k.fail = func(*Change[string, string]) error { touched++; return nil }
	if _, err := d.Apply(t.Context(), s, &proxy.Changed{Rows: []proxy.PortKey{key(7)}}); err != nil {
		t.Fatal(err)
	}
	if k.writes != 1 || k.lists != 0 || touched != 3 {
		t.Errorf("one endpoint took %d writes of %d objects and %d lists; want one of 3 (a door, two lists) and none", k.writes, touched, k.lists)
	}
}

// TestIdleObjects checks that idle objects are kept for a while, and removed if there are too
// many.
func TestIdleObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kernel{objects: map[string]string{}, limit: 1 << 20}
		m := k.mode()
		m.IdleTime = time.Minute
		d := New(m)
		s := proxy.NewState()
		if _, err := d.Sync(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		resize := func(n int) {
			sp := &proxy.ServicePort{Key: key(0)}
			for i := range n {
				sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: at(10, i)})
			}
			s.Rows[sp.Key] = sp
			if _, err := d.Apply(context.Background(), s, &proxy.Changed{Rows: []proxy.PortKey{sp.Key}}); err != nil {
				t.Fatal(err)
			}
		}
		lingering := func() (n int) {
			for id := range k.objects {
				if strings.HasPrefix(id, chosen) {
					n++
				}
			}
			return n
		}
		for n := range 10 {
			resize(n)
		}
		if got := lingering(); got != 10 {
			t.Errorf("%d idle objects; want all ten, because they are young", got)
		}
		time.Sleep(2 * time.Minute)
		k.answer = func() error { return errLost }
		for range 2 {
			if _, err := d.Apply(context.Background(), s, &proxy.Changed{}); !errors.Is(err, proxy.ErrNeedSync) {
				t.Errorf("error %v; want ErrNeedSync, because it is not known what was removed", err)
			}
			k.answer = nil
		}
		if _, err := d.Sync(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		for n := range 10 {
			resize(n)
		}
		time.Sleep(2 * time.Minute)
		resize(4)
		if got := lingering(); got > 5 {
			t.Errorf("%d objects two minutes later; want no more than MaxIdle idle ones", got)
		}
	})
}

// TestContestedObjects makes random rows want different values of two objects. After each step the
// objects are as a Sync makes them, as the first row wants them, and the other rows are reported.
func TestContestedObjects(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		k := &kernel{objects: map[string]string{}, limit: []int{1, 1 << 20}[r.IntN(2)]}
		d, s := New(k.mode()), proxy.NewState()
		if _, err := d.Sync(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			c := &proxy.Changed{}
			for i := range 5 {
				row := &proxy.ServicePort{Key: key(i), HealthCheckPort: uint16(r.IntN(3))}
				row.Key.Namespace = fmt.Sprint("ns-", i%2)
				switch r.IntN(4) {
				case 0:
					s.Rows[row.Key] = row
				case 1:
					delete(s.Rows, row.Key)
				}
				c.Rows = append(c.Rows, row.Key)
			}
			slices.SortFunc(c.Rows, proxy.ComparePortKeys)
			refused, err := d.Apply(t.Context(), s, c)
			if err != nil {
				t.Fatal(err)
			}
			wants := map[string]uint16{}
			for _, row := range c.Rows {
				port := uint16(0)
				if sp := s.Rows[row]; sp != nil {
					port = sp.HealthCheckPort
				}
				if id := flag + row.Namespace; port > 0 && wants[id] == 0 {
					wants[id] = port
				}
				_, partial := errors.AsType[*proxy.PartialError](refused[row])
				if other := port > 0 && port != wants[flag+row.Namespace]; other != partial {
					t.Fatalf("seed %d: %v of %v: %v; want an error: %t", seed, row, s.Rows[row], refused[row], other)
				}
			}
			for _, ns := range []string{"ns-0", "ns-1"} {
				id := flag + ns
				if have, want := k.objects[id], wants[id]; have != "" && have != fmt.Sprint(want) || (have == "") != (want == 0) {
					t.Fatalf("seed %d: %s is %q, want %d", seed, id, have, want)
				}
			}
			if r.IntN(5) == 0 {
				written := 0
				k.fail = func(c *Change[string, string]) error {
					if strings.HasPrefix(c.ID, flag) {
						written++
					}
					return nil
				}
				again, err := d.Sync(t.Context(), s)
				if err != nil || written > 0 || len(again) != len(refused) {
					t.Fatalf("seed %d: a Sync writes %d contested objects, and refuses %v after %v, error %v", seed, written, again, refused, err)
				}
				k.fail = nil
			}
		}
	}
}

// TestRewritten checks that Rewritten has the objects that a Sync repaired and their rows, but
// neither idle objects nor anything if the kernel was empty.
func TestRewritten(t *testing.T) {
	s := proxy.NewState()
	for i := range 5 {
		s.Rows[key(i)] = &proxy.ServicePort{Key: key(i), Frontends: []proxy.Frontend{{Addr: at(172, i)}}, Cluster: []proxy.Endpoint{{Addr: at(10, i/2)}}}
	}
	k := &kernel{objects: map[string]string{}, limit: 1 << 20}
	d := New(k.mode())
	for _, tt := range []struct {
		name   string
		damage func()
		want   proxy.Rewritten
	}{
		{"the first time", func() {}, proxy.Rewritten{}},
		{"nothing", func() {}, proxy.Rewritten{}},
		{"a row's", func() { delete(k.objects, door+at(172, 3).String()) }, proxy.Rewritten{Objects: 1, Rows: []proxy.PortKey{key(3)}}},
		{"shared by two", func() { k.objects[list+at(10, 0).String()] = "x" }, proxy.Rewritten{Objects: 1, Rows: []proxy.PortKey{key(0), key(1)}}},
		{"constant, and one too many", func() { delete(k.objects, "base"); k.objects[door+"x"] = "" }, proxy.Rewritten{Objects: 2}},
		{"what lingers", func() { k.objects[chosen+"7"] = "" }, proxy.Rewritten{}},
		{"everything", func() { clear(k.objects) }, proxy.Rewritten{}},
	} {
		tt.damage()
		if _, err := d.Sync(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if got := d.Rewritten(); got.Objects != tt.want.Objects || !slices.Equal(got.Rows, tt.want.Rows) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// attempts counts all batches that are sent, also those that are refused.
type attempts struct {
	nft.Interface
	n int
}

func (a *attempts) Commit(ctx context.Context, b *nft.Batch) error {
	if len(b.Ops) > 0 {
		a.n++
	}
	return a.Interface.Commit(ctx, b)
}

// TestCostOfFlapping takes a Service from three endpoints to two and back. Its
// two classes are kept for it however often that happens: each change is one
// batch, and none is refused, for which the kernel takes its time.
func TestCostOfFlapping(t *testing.T) {
	ctx := context.Background()
	fake := nfttest.NewFake()
	conn := &attempts{Interface: fake}
	d := Alone.New(conn, mode.Settings{MasqueradeBit: 14})
	a, b := plainRow(0, 3, 0), plainRow(0, 2, 0)
	s := plainState(0)
	s.Rows[a.Key] = a
	if err := proxytest.Sync(ctx, d, s); err != nil {
		t.Fatal(err)
	}
	conn.n = 0
	const changes = 10 * maxIdle
	for range changes {
		if err := proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: a, New: b}}}); err != nil {
			t.Fatal(err)
		}
		a, b = b, a
	}
	if conn.n != changes {
		t.Errorf("%d changes took %d batches", changes, conn.n)
	}
	l, err := fake.List(ctx, d.tables[0].Table)
	if err != nil {
		t.Fatal(err)
	}
	if n, constant := len(l.Chains), len(d.tables[0].constantChains(s.Node, nil, d.guard)); n != constant+2 {
		t.Errorf("%d chains; want %d constant ones and two of classes", n, constant)
	}
}

// silent does what it is asked to, but loses the answer where a class is deleted.
type silent struct{ nft.Interface }

func (s silent) Commit(ctx context.Context, b *nft.Batch) error {
	err := s.Interface.Commit(ctx, b)
	deletes := func(op nft.Op) bool { return op.Kind == nft.DeleteElement && op.Set.Verdicts }
	if slices.ContainsFunc(b.Ops, deletes) {
		return fmt.Errorf("read answers: %w: %w", nft.ErrUncertain, unix.ENOBUFS)
	}
	return err
}

// TestLostAnswerLosesNoClass uses classes again of which it is not known whether
// they could be deleted.
func TestLostAnswerLosesNoClass(t *testing.T) { synctest.Test(t, lostAnswerLosesNoClass) }

func lostAnswerLosesNoClass(t *testing.T) {
	ctx := context.Background()
	fake := nfttest.NewFake()
	d := Alone.New(silent{fake}, mode.Settings{MasqueradeBit: 14})
	s := plainState(0)
	if err := proxytest.Sync(ctx, d, s); err != nil {
		t.Fatal(err)
	}
	syncs := 0
	for n := range 3 * maxIdle {
		sp := plainRow(0, 2, 0)
		sp.Affinity = time.Duration(n%(2*maxIdle)+1) * time.Second
		s.Rows[sp.Key] = sp
		_, err := d.Apply(ctx, s, &proxy.Changed{Rows: []proxy.PortKey{sp.Key}})
		for errors.Is(err, proxy.ErrNeedSync) && syncs < n {
			syncs++
			_, err = d.Sync(ctx, s)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		chains := map[string]bool{}
		each := func(s *nft.Set, f func(nft.Element)) {
			if err := fake.Elements(ctx, s, f); err != nil {
				t.Fatal(err)
			}
		}
		each(d.tables[0].classSet, func(e nft.Element) { chains[e.Key] = true })
		each(d.tables[0].addresses.dispatch, func(e nft.Element) {
			if class, _ := classIn(e.Data); !chains[class] {
				t.Fatalf("after change %d the Service leads to class %x, which is not there", n, e.Data)
			}
		})
	}
	if syncs == 0 {
		t.Error("no answer was lost")
	}
}

// TestClassNumbersBeginAnew has a former process leave the last number there is.
func TestClassNumbersBeginAnew(t *testing.T) {
	cs := newClasses()
	for i, n := range []uint32{firstClass, slots - 2, slots, scratchBit, 7} {
		cs.recover(nft.Element{Key: string(hostWord(n)), Verdict: nft.Verdict{Code: nft.Goto, Chain: class{count: i + 1}.chain()}})
	}
	given := map[uint32]class{}
	for i := range 1000 {
		c := class{count: i + 1}
		n := cs.number(c)
		if other, ok := given[n]; ok {
			t.Fatalf("number %x of class %v is given to %v", n, other, c)
		}
		if n < firstClass || n >= slots {
			t.Fatalf("class %v has number %x, which is no class's", c, n)
		}
		given[n] = c
	}
	if n := cs.number(class{count: 1}); n != firstClass {
		t.Errorf("the class that was there has number %x now", n)
	}
}

// TestClassesReferToNoLargeMap pins what a class costs that is new. To add a rule
// that refers to a map the kernel looks at all the map's elements, and to add an
// element to it, at all such rules: chains of classes may refer to the map of
// remembered clients alone, once for each time-out.
func TestClassesReferToNoLargeMap(t *testing.T) {
	for _, tab := range Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14}).tables {
		for _, c := range []class{
			{count: 3},
			{count: 3, nodePort: true, scope: proxy.ScopeLocal, masquerade: true},
			{count: 3, timeout: time.Hour},
			{count: 5000, timeout: time.Hour, scope: proxy.ScopeLocal},
		} {
			for i, ch := range tab.classChains(c) {
				for _, r := range ch.rules {
					for _, x := range r.Exprs {
						if lookup, ok := x.(*expr.Lookup); ok {
							t.Errorf("chain %s looks up %s", ch.Name, lookup.SetName)
						}
						if dynset, ok := x.(*expr.Dynset); ok && (i == 0 || dynset.SetName != tab.affinity.Name) {
							t.Errorf("chain %s updates %s", ch.Name, dynset.SetName)
						}
					}
				}
			}
		}
	}
}

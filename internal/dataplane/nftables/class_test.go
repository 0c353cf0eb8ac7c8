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

// attempts counts all batches that are sent, including refused ones.
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

// TestCostOfFlapping changes a Service from three endpoints to two and back. Its two
// classes stay however often that happens: each change is one batch, and none is refused,
// which takes the kernel long.
func TestCostOfFlapping(t *testing.T) {
	ctx := context.Background()
	fake := nfttest.NewFake()
	conn := &attempts{Interface: fake}
	d := Alone.New(conn, mode.Settings{MasqueradeBit: 14})
	a, b := plainRow(0, 3, 0), plainRow(0, 2, 0)
	s := plainState(0)
	s.Rows[a.Key] = a
	proxytest.MustSync(t, d, s)
	conn.n = 0
	const changes = 10 * maxIdle
	for range changes {
		proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: a, New: b}}})
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

// lostAnswers commits every batch, but loses the answer to those that delete a class.
type lostAnswers struct{ nft.Interface }

func (s lostAnswers) Commit(ctx context.Context, b *nft.Batch) error {
	err := s.Interface.Commit(ctx, b)
	deletes := func(op nft.Op) bool { return op.Kind == nft.DeleteElement && op.Set.Verdicts }
	if slices.ContainsFunc(b.Ops, deletes) {
		return fmt.Errorf("read answers: %w: %w", nft.ErrUncertain, unix.ENOBUFS)
	}
	return err
}

// TestLostAnswerKeepsClass uses classes again after it is not known whether they were
// deleted.
func TestLostAnswerKeepsClass(t *testing.T) { synctest.Test(t, lostAnswerKeepsClass) }

func lostAnswerKeepsClass(t *testing.T) {
	ctx := context.Background()
	fake := nfttest.NewFake()
	d := Alone.New(lostAnswers{fake}, mode.Settings{MasqueradeBit: 14})
	s := plainState(0)
	proxytest.MustSync(t, d, s)
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
				t.Fatalf("after change %d the Service has class %x, which does not exist", n, e.Data)
			}
		})
	}
	if syncs == 0 {
		t.Error("no answer was lost")
	}
}

// TestClassNumbersWrapAround starts with a table in which a former process used the last
// number.
func TestClassNumbersWrapAround(t *testing.T) {
	cs := newClasses()
	for i, n := range []uint32{firstClass, slots - 2, slots, scratchBit, 7} {
		cs.recover(nft.Element{Key: string(hostWord(n)), Verdict: nft.Verdict{Code: nft.Goto, Chain: class{count: i + 1}.chain()}})
	}
	given := map[uint32]class{}
	for i := range 1000 {
		c := class{count: i + 1}
		n := cs.number(c)
		if other, ok := given[n]; ok {
			t.Fatalf("number %x of class %v is assigned to %v", n, other, c)
		}
		if n < firstClass || n >= slots {
			t.Fatalf("class %v has number %x, which is not a number of a class", c, n)
		}
		given[n] = c
	}
	if n := cs.number(class{count: 1}); n != firstClass {
		t.Errorf("the class that was there has number %x now", n)
	}
}

// TestClassesReferToNoLargeMap bounds the cost of a new class. When a rule that refers to a
// map is added, the kernel visits all elements of the map, and when an element is added, all
// such rules. So chains of classes may refer only to the map of remembered clients, once
// for each timeout.
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

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestSyncVerifiesEveryRule replaces each rule of each chain by one that drops everything and
// has the same comment. Sync must find it.
func TestSyncVerifiesEveryRule(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	d, c := openKernel(t)
	state := randomState(1, 12)
	proxytest.MustSync(t, d, state)
	list := func() string {
		return settled(t, func() string {
			out, err := exec.Command("nft", "-s", "list", "table", "ip", tableName).Output()
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		})
	}
	want := list()
	tab := d.tables[0]
	chains := tab.constantChains(state.Node, state.CIDRs, d.guard)
	for class := range tab.classes.numbers {
		chains = append(chains, tab.classChains(class)...)
	}
	tried := 0
	for _, ch := range chains {
		for i := range ch.rules {
			hurt := *ch
			hurt.rules = slices.Clone(ch.rules)
			hurt.rules[i] = tab.rule().drop().comment(ch.rules[i].Comment)
			var b nft.Batch
			tab.rewrite(&b, &hurt, true)
			if err := c.Interface.Commit(ctx, &b); err != nil {
				t.Fatalf("rule %d of %s: %v", i, ch.Name, err)
			}
			proxytest.MustSync(t, d, state)
			if diff := cmp.Diff(want, list()); diff != "" {
				t.Fatalf("rule %d of %s stayed replaced (-want +got):\n%s", i, ch.Name, diff)
			}
			tried++
		}
	}
	if tried < 60 {
		t.Errorf("tried %d rules only", tried)
	}
}

// faulty refuses operations for which a function returns an error.
type faulty struct {
	nft.Interface
	fails func(*nft.Op) error
}

func (f *faulty) Commit(ctx context.Context, b *nft.Batch) error {
	ce := &nft.CommitError{}
	for i := range b.Ops {
		if err := f.fails(&b.Ops[i]); err != nil {
			ce.Failures = append(ce.Failures, nft.Failure{Op: &b.Ops[i], Err: err})
		}
	}
	if len(ce.Failures) > 0 {
		return ce
	}
	return f.Interface.Commit(ctx, b)
}

// TestRefusedChainRefusesItsRowsOnly refuses a chain and then, as the kernel does, everything
// that refers to the chain.
func TestRefusedChainRefusesItsRowsOnly(t *testing.T) {
	ctx := context.Background()
	refuse := func(op *nft.Op) error {
		switch {
		case op.Kind == nft.AddChain && op.Chain.Name == "lb-3":
			return unix.ENOSPC
		case op.Chain != nil && op.Chain.Name == "lb-3", op.Element.Verdict.Chain == "lb-3":
			return unix.ENOENT
		default:
			return nil
		}
	}
	state := plainState(10)
	delta := &proxy.Delta{}
	for i := range 5 {
		sp := plainRow(100+i, 3, 0)
		delta.Upserts = append(delta.Upserts, proxy.Upsert{New: sp})
	}
	delta.Upserts = append(delta.Upserts, proxy.Upsert{New: plainRow(200, 4, 0)})
	for _, method := range []string{"Apply", "Sync", "Sync of an empty kernel"} {
		t.Run(method, func(t *testing.T) {
			f := &faulty{nfttest.NewFake(), func(*nft.Op) error { return nil }}
			d := Alone.New(f, mode.Settings{MasqueradeBit: 14})
			if method != "Sync of an empty kernel" {
				proxytest.MustSync(t, d, state)
			}
			f.fails = refuse
			next := plainState(10)
			next.Apply(delta)
			var err error
			if method == "Apply" {
				err = proxytest.Apply(ctx, d, delta)
			} else {
				err = proxytest.Sync(ctx, d, next)
			}
			var refused *proxytest.RefusedError
			if !errors.As(err, &refused) || len(refused.Rows) != 5 {
				t.Fatalf("got %v; want the five rows refused that need the chain", err)
			}
			if got := strings.Count(dump(t, f, d), "table ip sluice services "); got != 11 {
				t.Errorf("%d Services are written; want 11", got)
			}
		})
	}
}

// TestMissingExpression uses a kernel that lacks the expression of a balancing method and
// answers ENOENT: only the rows that need it are refused, and retrying them lists nothing.
func TestMissingExpression(t *testing.T) {
	f := &faulty{nfttest.NewFake(), func(op *nft.Op) error {
		if op.Kind == nft.AddRule && strings.HasSuffix(op.Chain.Name, "source-hash") {
			return unix.ENOENT
		}
		return nil
	}}
	d := Alone.New(f, mode.Settings{MasqueradeBit: 14})
	hashed := plainRow(100, 3, 0)
	hashed.Balancing = proxy.SourceHash
	state := plainState(10)
	state.Rows[hashed.Key] = hashed
	refuses := func(err error) {
		t.Helper()
		var refused *proxytest.RefusedError
		if !errors.As(err, &refused) || len(refused.Rows) != 1 {
			t.Fatalf("got %v; want the row refused that needs the expression", err)
		}
		if got := strings.Count(dump(t, f, d), "table ip sluice services "); got != 10 {
			t.Errorf("%d Services are written; want 10", got)
		}
	}
	refuses(proxytest.Sync(t.Context(), d, state))
	refuses(proxytest.Apply(t.Context(), d, &proxy.Delta{Upserts: []proxy.Upsert{{New: hashed}}}))
}

// TestUnusedClassesAreDeleted checks that some unused classes stay, but not all. A class
// whose chain could not be deleted is written again when it is needed.
func TestUnusedClassesAreDeleted(t *testing.T) { synctest.Test(t, unusedClassesAreDeleted) }

func unusedClassesAreDeleted(t *testing.T) {
	ctx := context.Background()
	f := &faulty{nfttest.NewFake(), func(*nft.Op) error { return nil }}
	d := Alone.New(f, mode.Settings{MasqueradeBit: 14})
	failed := func(f proxy.Family) float64 {
		return proxytest.Values(ctx, d, "sync_proxy_rules_nftables_cleanup_failures_total")[f.String()]
	}
	proxytest.MustSync(t, d, plainState(0))
	stuck := plainRow(0, 1, 0)
	stuckChain := class{count: 1}.chain()
	f.fails = func(op *nft.Op) error {
		if op.Kind == nft.DeleteChain && op.Chain.Name == stuckChain {
			return unix.EBUSY
		}
		return nil
	}
	var last *proxy.ServicePort
	apply := func(sp *proxy.ServicePort) {
		t.Helper()
		proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: last, New: sp}}})
		last = sp
		time.Sleep(time.Second)
	}
	for n := range 1000 {
		sp := plainRow(0, 2, 0)
		sp.Affinity = time.Duration(n+1) * time.Second // a class of its own each time
		if n == 0 {
			sp = stuck
		}
		apply(sp)
	}
	l, err := f.List(ctx, d.tables[0].Table)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(l.Chains); n > maxIdle+2*int(idleTime/time.Second)+80 {
		t.Errorf("%d chains are left of 1000 classes", n)
	}
	if failed(proxy.IPv4) != 1 || failed(proxy.IPv6) != 0 {
		t.Errorf("%v failures; want one of IPv4", failed(proxy.IPv4))
	}
	proxytest.MustSync(t, d, &proxy.State{Rows: map[proxy.PortKey]*proxy.ServicePort{last.Key: last}, Node: testNode()})
	if failed(proxy.IPv4) != 2 {
		t.Errorf("%v failures after a Sync, which tries again; want two", failed(proxy.IPv4))
	}
	if _, there := l.Chains[stuckChain]; !there {
		t.Fatalf("chain %s was deleted although the kernel refused that", stuckChain)
	}
	apply(stuck)
	if l, err = f.List(ctx, d.tables[0].Table); err != nil {
		t.Fatal(err)
	}
	if got, want := l.Chains[stuckChain], d.tables[0].classChains(class{count: 1})[0].listed(); !slices.Equal(got, want) {
		t.Errorf("chain %s has rules %v; want %v", stuckChain, got, want)
	}
}

// TestStopBetweenBatches ends a Sync after each of its batches. Whatever the kernel has then,
// the source ranges of a LoadBalancer are the old or the new ones.
func TestStopBetweenBatches(t *testing.T) {
	ctx := context.Background()
	row := func(i int, from ...string) *proxy.ServicePort {
		sp := plainRow(i, 2, 0)
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: addrPort(1<<24, i, 80)})
		for _, f := range from {
			sp.AllowFrom = append(sp.AllowFrom, netip.MustParsePrefix(f))
		}
		return sp
	}
	before, after := plainState(0), plainState(0)
	for i, change := range [][2]*proxy.ServicePort{
		{row(0, "10.0.0.0/8"), row(0, "10.1.0.0/16", "10.2.0.0/16")},
		{row(1, "10.0.0.0/8"), row(1)},
		{row(2), row(2, "10.0.0.0/8")},
		{row(3, "10.0.0.0/8", "11.0.0.0/8"), nil},
		{nil, row(4, "10.0.0.0/8")},
		{row(5, "10.1.0.0/16"), row(5, "10.0.0.0/8")},
	} {
		for j, s := range []*proxy.State{before, after} {
			if sp := change[j]; sp != nil {
				s.Rows[sp.Key] = change[j]
			} else if i < 3 {
				t.Fatal("a row is missing")
			}
		}
	}
	for stop := 1; ; stop++ {
		fake := nfttest.NewFake()
		d := Alone.New(fake, mode.Settings{MasqueradeBit: 14})
		proxytest.MustSync(t, d, before)
		allowed := map[string]bool{}
		for _, s := range []*proxy.State{before, after} {
			n := Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14})
			proxytest.MustSync(t, n, s)
			for f, r := range ranges(t, n) {
				allowed[f+" "+r] = true
			}
		}
		stopping, cancel := context.WithCancel(ctx)
		d.syncBytes = 1
		d.conn = &stopper{Interface: fake, after: stop, stop: cancel}
		err := proxytest.Sync(stopping, d, after)
		cancel()
		d.conn = fake
		for f, r := range ranges(t, d) {
			if !allowed[f+" "+r] {
				t.Errorf("stopped after batch %d: LoadBalancer %s is open to %q, neither the old nor the new clients", stop, f, r)
			}
		}
		if err == nil {
			if stop < 5 {
				t.Errorf("the Sync had %d batches only", stop)
			}
			return
		}
	}
}

// stopper ends a context after some batches.
type stopper struct {
	nft.Interface
	after int
	stop  func()
}

func (s *stopper) Commit(ctx context.Context, b *nft.Batch) error {
	err := s.Interface.Commit(ctx, b)
	if len(b.Ops) > 0 {
		if s.after--; s.after == 0 {
			s.stop()
		}
	}
	return err
}

// ranges returns the source ranges of each frontend whose packets are translated.
func ranges(t *testing.T, d *Dataplane) map[string]string {
	t.Helper()
	tab := d.tables[0]
	each := func(s *nft.Set, f func(nft.Element)) {
		if err := d.conn.Elements(context.Background(), s, f); err != nil {
			t.Fatal(err)
		}
	}
	out := map[string]string{}
	each(tab.addresses.dispatch, func(e nft.Element) { out[e.Key] = "all" })
	l, err := d.conn.List(context.Background(), tab.Table)
	if err != nil {
		t.Fatal(err)
	}
	each(tab.restricted, func(e nft.Element) {
		if _, ok := out[e.Key]; ok {
			out[e.Key] = fmt.Sprintf("only %x", l.Chains[e.Verdict.Chain])
		}
	})
	return out
}

// TestAffinityMapFull checks that connections are balanced if the map of clients is full.
func TestAffinityMapFull(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	podsOnLoopback(t)
	d, err := Alone.Open(ctx, mode.Settings{MasqueradeBit: 14})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	d.tables[0].affinity.Size = 16
	sp := plainRow(0, 5, 0)
	sp.Key.Protocol, sp.Affinity = proxy.UDP, time.Hour
	s := plainState(0)
	s.Rows[sp.Key] = sp
	proxytest.MustSync(t, d, s)
	if refused := sendFlows(t, sp.Frontends[0].Addr, 5000); refused > 0 {
		t.Errorf("%d of 5000 clients refused", refused)
	}
	for i, want := range []int{16, 0} {
		if n, ok := d.reader.count(ctx, d.tables[i]); !ok || n != want {
			t.Errorf("%d %v clients are remembered (%v); want %d", n, d.tables[i].family, ok, want)
		}
	}
}

// TestIDsAreStable checks that endpoints keep their ids over changes and a restart, and that
// no id is reused, except after a restart.
func TestIDsAreStable(t *testing.T) {
	fake := nfttest.NewFake()
	d := Alone.New(fake, mode.Settings{MasqueradeBit: 14})
	row := func(first int) *proxy.ServicePort {
		sp := plainRow(0, 10, first)
		sp.Affinity = time.Hour
		return sp
	}
	s := plainState(0)
	last := row(0)
	s.Rows[last.Key] = last
	proxytest.MustSync(t, d, s)
	ids := func() map[netip.AddrPort]uint32 {
		out := map[netip.AddrPort]uint32{}
		for a, p := range d.tables[0].blocks.byRow[last.Key].positions {
			out[a] = p.offset
		}
		return out
	}
	given := map[uint32]netip.AddrPort{}
	for round := range 500 {
		next := row(1000 + round)
		proxytest.MustApply(t, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: last, New: next}}})
		last, s.Rows[next.Key] = next, next
		if round%100 == 99 { // a restart
			d, given = Alone.New(fake, mode.Settings{MasqueradeBit: 14}), live(given, last)
			fake.Reset()
			proxytest.MustSync(t, d, s)
			if n := fake.Reset().Elements(); n != 0 {
				t.Errorf("the Sync after a restart made %d operations", n)
			}
		}
		if got := len(ids()); got != 10 {
			t.Fatalf("round %d: %d ids of 10 endpoints", round, got)
		}
		for a, id := range ids() {
			if was, ok := given[id]; ok && was != a {
				t.Fatalf("round %d: id %x of %v is assigned to %v", round, id, was, a)
			}
			given[id] = a
		}
	}
}

// live returns the ids of the endpoints of a row.
func live(given map[uint32]netip.AddrPort, sp *proxy.ServicePort) map[uint32]netip.AddrPort {
	out := map[uint32]netip.AddrPort{}
	for id, a := range given {
		if slices.ContainsFunc(sp.Cluster, func(e proxy.Endpoint) bool { return e.Addr == a }) {
			out[id] = a
		}
	}
	return out
}

// batchLimit refuses large batches, like a system without large socket buffers.
type batchLimit struct {
	*counter
	ops int
}

func (l batchLimit) Commit(ctx context.Context, b *nft.Batch) error {
	if len(b.Ops) > l.ops {
		return fmt.Errorf("send batch: %w", unix.EMSGSIZE)
	}
	return l.counter.Commit(ctx, b)
}

// TestReplacingTableLeavesNoGap replaces a table that cannot be repaired in the batch that
// deletes it, and only if that batch is too large in two steps.
func TestReplacingTableLeavesNoGap(t *testing.T) {
	for _, tt := range []struct {
		limit    int
		oneBatch bool
	}{{1 << 30, true}, {700, false}} {
		lab.Namespace(t)
		d, c := openKernel(t)
		state := plainState(60)
		proxytest.MustSync(t, d, state)
		want := dump(t, c, d)
		if out, err := exec.Command("nft", "chain ip sluice filter-forward { policy drop; }").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		c.reset()
		d.conn, d.syncBytes = batchLimit{c, tt.limit}, 16<<10
		proxytest.MustSync(t, d, state)
		if got := dump(t, c, d); got != want {
			t.Errorf("limit %d: not as before:\n%s", tt.limit, cmp.Diff(want, got))
		}
		oneBatch := false
		for _, ops := range c.commits {
			hooks, deletes := 0, 0
			for _, op := range ops {
				if op.Kind == nft.DeleteTable {
					deletes++
				}
				if op.Kind == nft.AddChain && op.Chain.Hook != nil {
					hooks++
				}
			}
			oneBatch = oneBatch || deletes == 1 && hooks == 6
		}
		if oneBatch != tt.oneBatch {
			t.Errorf("limit %d: deleted and added in one batch is %v; want %v", tt.limit, oneBatch, tt.oneBatch)
		}
	}
}

// incompleteLister omits an element from its first listings.
type incompleteLister struct {
	nft.Interface
	listings int
}

func (f *incompleteLister) Elements(ctx context.Context, s *nft.Set, yield func(nft.Element)) error {
	left := false
	return f.Interface.Elements(ctx, s, func(e nft.Element) {
		if f.listings > 0 && !left && s.Name == "endpoints" {
			f.listings--
			left = true
			return
		}
		yield(e)
	})
}

// TestSyncWithIncompleteListing omits an existing element from a listing. Sync must not blame
// a row for that, unless a second listing omits it, too.
func TestSyncWithIncompleteListing(t *testing.T) {
	for _, tt := range []struct{ listings, refused int }{{1, 0}, {2, 1}} {
		ctx := context.Background()
		conn := &incompleteLister{Interface: nfttest.NewFake()}
		d := Alone.New(conn, mode.Settings{MasqueradeBit: 14})
		row := plainRow(0, 3, 0)
		s := plainState(0)
		s.Rows[row.Key] = row
		proxytest.MustSync(t, d, s)
		s.Rows[row.Key] = plainRow(1, 3, 0)
		s.Rows[row.Key].Key, s.Rows[row.Key].Frontends = row.Key, row.Frontends
		conn.listings = tt.listings
		refused, err := d.Sync(ctx, s)
		if err != nil || len(refused) != tt.refused || conn.listings != 0 {
			t.Errorf("%d such listings: refused %v, error %v, %d listings to come; want %d refused", tt.listings, refused, err, conn.listings, tt.refused)
		}
	}
}

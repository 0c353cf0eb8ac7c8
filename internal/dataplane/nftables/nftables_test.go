package nftables

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
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

// randomState returns n random rows, the same for the same seed.
func randomState(seed uint64, n int) *proxy.State {
	r := rand.New(rand.NewPCG(seed, 0))
	s := proxy.NewState()
	s.Node = testNode()
	s.CIDRs = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00:172::/112")}
	for i := range n {
		sp := randomRow(r, i)
		s.Rows[sp.Key] = sp
	}
	return s
}

// deltaBetween returns the difference of the rows of two states.
func deltaBetween(a, b *proxy.State) *proxy.Delta {
	d := &proxy.Delta{}
	for k, old := range a.Rows {
		if b.Rows[k] == nil {
			d.Removes = append(d.Removes, old)
		}
	}
	for k, cur := range b.Rows {
		d.Upserts = append(d.Upserts, proxy.Upsert{Old: a.Rows[k], New: cur})
	}
	return d
}

// TestApplyEqualsSync reaches states by Apply and by Sync, in the kernel, and compares the
// results.
func TestApplyEqualsSync(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	d, c := openKernel(t)
	state := proxy.NewState()
	state.Node, state.CIDRs = randomState(0, 0).Node, randomState(0, 0).CIDRs
	proxytest.MustSync(t, d, state)
	for seed := range uint64(20) {
		next := randomState(seed, 10+int(seed%5)*10)
		if seed%3 == 0 {
			swapFrontends(next, 0, 6)
		}
		if seed%2 == 1 { // in many batches
			d.applyBytes, d.syncBytes = 1000, 1
		} else {
			d.applyBytes, d.syncBytes = applyBytes, syncBytes
		}
		if err := proxytest.Apply(ctx, d, deltaBetween(state, next)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		state = next
		got := dump(t, c, d)

		c.reset()
		if err := proxytest.Sync(ctx, d, state); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, op := range slices.Concat(c.commits...) {
			unused := op.Kind == nft.DeleteElement && op.Set.Name == "classes"
			unlisted := op.Kind == nft.AddElement // got has it, or it differs below
			if op.Kind != nft.DeleteChain && op.Kind != nft.FlushChain && !unused && !unlisted {
				t.Errorf("seed %d: Sync after Apply had to %v", seed, &op)
			}
		}
		fresh, fake := Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14}), nfttest.NewFake()
		fresh.conn = fake
		if err := proxytest.Sync(ctx, fresh, state); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if diff := cmp.Diff(dump(t, fake, fresh), got); diff != "" {
			t.Fatalf("seed %d: written by Sync (-) and by Apply (+) differ:\n%s", seed, diff)
		}
	}
	for _, tab := range d.tables {
		if n := tab.cleanupFailures.Load(); n > 0 {
			t.Errorf("%v: %d chains could not be deleted", tab.family, n)
		}
	}
}

// TestSyncRepairs damages the tables in many ways. Sync must restore everything, and a second
// one write nothing.
func TestSyncRepairs(t *testing.T) {
	ctx := context.Background()
	state := randomState(1, 40)
	sp := restrictedRow(1000, manyRanges(20))
	state.Rows[sp.Key] = sp
	damage := map[string]func(t *testing.T, d *Dataplane, b *nft.Batch){
		"nothing": func(*testing.T, *Dataplane, *nft.Batch) {},
		"tables gone": func(_ *testing.T, d *Dataplane, b *nft.Batch) {
			b.DeleteTable(d.tables[0].Table)
			b.DeleteTable(d.tables[1].Table)
		},
		"chain flushed": func(_ *testing.T, d *Dataplane, b *nft.Batch) { b.FlushChain(d.tables[0].Table, services) },
		"hook flushed":  func(_ *testing.T, d *Dataplane, b *nft.Batch) { b.FlushChain(d.tables[1].Table, "nat-prerouting") },
		"foreign rule": func(_ *testing.T, d *Dataplane, b *nft.Batch) {
			b.AddRule(d.tables[0].Table, services, &nft.Rule{Exprs: d.tables[0].rule().accept().exprs})
		},
		"foreign chain and element": func(_ *testing.T, d *Dataplane, b *nft.Batch) {
			b.AddChain(d.tables[0].Table, &nft.Chain{Name: "theirs"})
			b.AddElement(d.tables[0].nodePorts.dispatch, nft.Element{Key: "\x06\x00\x00\x00\x00\x16\x00\x00", Data: string(hostWord(7))})
			b.AddElement(d.tables[0].classSet, nft.Element{Key: string(hostWord(7)), Verdict: nft.Verdict{Code: nft.Goto, Chain: "theirs"}})
		},
		"source ranges exchanged": func(t *testing.T, d *Dataplane, b *nft.Batch) {
			theirs := d.tables[0].clientsChain(manyRanges(100))
			for name := range clientsChains(t, d.conn, d) {
				b.FlushChain(d.tables[0].Table, name)
				b.AddRule(d.tables[0].Table, name, theirs.rules[0])
			}
		},
		"source ranges gone": func(t *testing.T, d *Dataplane, b *nft.Batch) {
			if err := d.conn.Elements(ctx, d.tables[0].restricted, func(e nft.Element) { b.DeleteElement(d.tables[0].restricted, e) }); err != nil {
				t.Fatal(err)
			}
			for name := range clientsChains(t, d.conn, d) {
				b.DeleteChain(d.tables[0].Table, name)
			}
		},
		"sets of a former version": func(_ *testing.T, d *Dataplane, b *nft.Batch) {
			former := d.tables[0].set("allowed", "", nft.IPv4Addr)
			b.AddSet(former)
			b.AddElement(former, nft.Element{Key: "\x0a\x00\x00\x01"})
			b.AddRule(d.tables[0].Table, sourceRanges, d.tables[0].rule().saddr().inSet(former).drop().comment("as it was"))
		},
		"elements deleted and changed": func(t *testing.T, d *Dataplane, b *nft.Batch) {
			for _, s := range []*nft.Set{d.tables[0].addresses.endpoints, d.tables[1].addresses.dispatch} {
				i := 0
				if err := d.conn.Elements(ctx, s, func(e nft.Element) {
					if i++; i%2 == 0 {
						b.DeleteElement(s, e)
						if i%4 == 0 && len(e.Data) == 4 {
							b.AddElement(s, nft.Element{Key: e.Key, Data: string(hostWord(7))})
						}
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
		},
	}
	for name, hurt := range damage {
		t.Run(name, func(t *testing.T) {
			lab.Namespace(t)
			d, c := openKernel(t)
			proxytest.MustSync(t, d, state)
			want := dump(t, c, d)
			var b nft.Batch
			hurt(t, d, &b)
			nfttest.Commit(t, c.Interface, &b)
			again := Alone.New(c, mode.Settings{MasqueradeBit: 14}) // as after a restart
			proxytest.MustSync(t, again, state)
			if diff := cmp.Diff(want, dump(t, c, again)); diff != "" {
				t.Errorf("after repair (-before +after):\n%s", diff)
			}
			if l, err := c.List(ctx, d.tables[0].Table); err != nil || len(l.Sets) != len(d.tables[0].sets()) {
				t.Errorf("sets %v, error %v; want ours and no others", l.Sets, err)
			}
			wantIdle(t, c, again, state)
		})
	}
}

// TestSyncReplacesTable damages tables so that they cannot be repaired in place.
func TestSyncReplacesTable(t *testing.T) {
	for name, edit := range map[string]string{
		"policy":                           "chain ip sluice filter-forward { policy drop; }",
		"dormant":                          "add table ip sluice { flags dormant; }",
		"another hook":                     "delete chain ip sluice nat-output; add chain ip sluice nat-output { type filter hook input priority 5; }",
		"not a base":                       "delete chain ip sluice nat-output; add chain ip sluice nat-output",
		"a base in the place of a chain":   "delete table ip sluice; add table ip sluice; add chain ip sluice services { type filter hook input priority 0; }",
		"a base in the place of a class's": "delete table ip sluice; add table ip sluice; add chain ip sluice lb-2 { type filter hook input priority 0; }",
		"another table":                    "delete table ip sluice; add table ip sluice; add set ip sluice services { type ipv4_addr; }",
	} {
		t.Run(name, func(t *testing.T) {
			lab.Namespace(t)
			d, c := openKernel(t)
			s := randomState(1, 20)
			proxytest.MustSync(t, d, s)
			list := func() string {
				out, err := exec.Command("nft", "list", "chains").CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return string(out)
			}
			want, elements := list(), dump(t, c, d)
			if out, err := exec.Command("nft", edit).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			proxytest.MustSync(t, d, s)
			if got := dump(t, c, d); got != elements {
				t.Errorf("elements differ (-before +after):\n%s", cmp.Diff(elements, got))
			}
			if got := list(); len(got) != len(want) {
				t.Errorf("chains differ (-before +after):\n%s", cmp.Diff(want, got))
			}
			wantIdle(t, c, d, s)
		})
	}
}

// TestForeignElementNeedsSync adds an element that conflicts with a row. Apply must not blame
// the row, and Sync removes the element.
func TestForeignElementNeedsSync(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	d, c := openKernel(t)
	proxytest.MustSync(t, d, plainState(0))
	tab, row := d.tables[0], plainRow(7, 3, 0)
	var b nft.Batch
	b.AddElement(tab.addresses.dispatch, nft.Element{
		Key: tab.addresses.key(proxy.TCP, row.Frontends[0].Addr), Data: string(hostWord(7)),
	})
	nfttest.Commit(t, c.Interface, &b)
	delta := &proxy.Delta{}
	for i := range 20 {
		delta.Upserts = append(delta.Upserts, proxy.Upsert{New: plainRow(i, 3, 0)})
	}
	err := proxytest.Apply(ctx, d, delta)
	if !errors.Is(err, proxy.ErrNeedSync) {
		t.Fatalf("Apply gave %v, want an error that asks for a Sync", err)
	}
	s := plainState(0)
	s.Apply(delta)
	proxytest.MustSync(t, d, s)
	if got := strings.Count(dump(t, c, d), "table ip sluice endpoints "); got != 60 {
		t.Errorf("%d endpoint elements after Sync, want 60", got)
	}
}

// TestRefusedRowsAreSetAside syncs and applies rows of which some are refused, because their
// endpoints are of the wrong family, which no resolver would return. The others must be written.
func TestRefusedRowsAreSetAside(t *testing.T) {
	lab.Namespace(t)
	d, c := openKernel(t)
	bad := func(i int) *proxy.ServicePort {
		sp := plainRow(i, 3, 0)
		sp.Cluster[1].Addr = netip.MustParseAddrPort("[fd00:10::1]:80")
		return sp
	}
	want := func(err error, services int, rows ...int) {
		t.Helper()
		refused, ok := errors.AsType[*proxytest.RefusedError](err)
		if !ok || len(refused.Rows) != len(rows) {
			t.Fatalf("got %.300v, want a refusal of %v alone", err, rows)
		}
		for _, i := range rows {
			if refused.Rows[serviceKey(i, proxy.IPv4)] == nil {
				t.Errorf("row %d is not refused: %.300v", i, err)
			}
		}
		if got := strings.Count(dump(t, c, d), "table ip sluice services "); got != services {
			t.Errorf("%d Services are written, want %d", got, services)
		}
	}
	s := plainState(2000)
	for _, i := range []int{3, 700, 1999} {
		s.Rows[serviceKey(i, proxy.IPv4)] = bad(i)
	}
	want(proxytest.Sync(t.Context(), d, s), 1997, 3, 700, 1999)
	delta := &proxy.Delta{Upserts: []proxy.Upsert{{New: bad(2007)}}}
	for i := range 7 {
		delta.Upserts = append(delta.Upserts, proxy.Upsert{New: plainRow(2000+i, 3, 0)})
	}
	want(proxytest.Apply(t.Context(), d, delta), 2004, 2007)
}

// TestOverlappingRanges replaces source ranges by others that overlap them, by Apply and by
// Sync.
func TestOverlappingRanges(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	d, c := openKernel(t)
	row := func(from ...string) *proxy.ServicePort {
		sp := plainRow(1, 3, 0)
		sp.Frontends = append(sp.Frontends, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: netip.MustParseAddrPort("1.2.3.4:80")})
		for _, f := range from {
			sp.AllowFrom = append(sp.AllowFrom, netip.MustParsePrefix(f))
		}
		return sp
	}
	var last *proxy.ServicePort
	for i, sp := range []*proxy.ServicePort{
		row("203.0.113.0/25"), row("203.0.113.0/24"), row("203.0.113.0/26", "203.0.113.128/25"), row("203.0.0.0/16"), row("203.0.113.0/25"),
	} {
		s := plainState(0)
		s.Rows[sp.Key] = sp
		var err error
		if i%2 == 0 {
			err = proxytest.Sync(ctx, d, s)
		} else {
			err = proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: last, New: sp}}})
		}
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		want := d.tables[0].clientsChain(sp.AllowFrom)
		if got := clientsChains(t, c, d); len(got) != 1 || !slices.Equal(got[want.Name], want.listed()) {
			t.Errorf("step %d: chains %v, want %s with %v", i, got, want.Name, want.listed())
		}
		last = sp
	}
}

// TestDriftNeedsSync deletes what should be there. Apply must return ErrNeedSync, not refuse
// a row.
func TestDriftNeedsSync(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	d, c := openKernel(t)
	proxytest.MustSync(t, d, plainState(1))
	var b nft.Batch
	b.DeleteTable(d.tables[0].Table)
	nfttest.Commit(t, c.Interface, &b)
	node := testNode()
	node.MasqueradeAll = true
	for _, delta := range []*proxy.Delta{
		{Node: node}, {Removes: []*proxy.ServicePort{plainRow(0, 10, 0)}}, {Upserts: []proxy.Upsert{{New: plainRow(5, 2, 0)}}},
	} {
		err := proxytest.Apply(ctx, d, delta)
		if !errors.Is(err, proxy.ErrNeedSync) {
			t.Errorf("Apply onto a deleted table gave %v", err)
		}
	}
}

// TestApplyCanBeRetried checks that Apply succeeds after one that sent nothing.
func TestApplyCanBeRetried(t *testing.T) {
	d := Alone.New(nfttest.NewFake(), mode.Settings{})
	proxytest.MustSync(t, d, plainState(1))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{New: plainRow(5, 2, 0)}}})
	if !errors.Is(err, context.Canceled) || errors.Is(err, proxy.ErrNeedSync) {
		t.Errorf("Apply gave %v, want %v and no need of a Sync", err, context.Canceled)
	}
}

// TestTakeOver checks that kube-proxy's tables are deleted in the batch that adds our base
// chains.
func TestTakeOver(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	d, c := openKernel(t)
	theirs := []nft.Table{{Family: nft.IP, Name: "kube-proxy"}, {Family: nft.IP6, Name: "kube-proxy"}}
	var b nft.Batch
	for _, tab := range append(theirs, nft.Table{Family: nft.IP, Name: "someone"}) {
		b.AddTable(tab)
		b.AddChain(tab, &nft.Chain{Name: "services"})
	}
	nfttest.Commit(t, c.Interface, &b)
	proxytest.MustSync(t, d, plainState(100))
	last := c.commits[len(c.commits)-1]
	deletes, hooks := 0, 0
	for _, op := range last {
		if op.Kind == nft.DeleteTable {
			deletes++
		}
		if op.Kind == nft.AddChain && op.Chain.Hook != nil {
			hooks++
		}
	}
	if deletes != 2 || hooks != 12 {
		t.Errorf("the last batch deletes %d tables and adds %d base chains, want 2 and 12", deletes, hooks)
	}
	for _, earlier := range c.commits[:len(c.commits)-1] {
		for _, op := range earlier {
			if op.Kind == nft.AddChain && op.Chain.Hook != nil {
				t.Errorf("%v is live before the last batch", &op)
			}
		}
	}
	if l, err := c.List(ctx, nft.Table{Family: nft.IP, Name: "someone"}); l == nil || err != nil {
		t.Errorf("a table of another program was deleted (%v)", err)
	}
}

// TestBatchesAreBounded checks that a large write is split into batches.
func TestBatchesAreBounded(t *testing.T) {
	lab.Namespace(t)
	d, c := openKernel(t)
	proxytest.MustSync(t, d, plainState(3000))
	if len(c.commits) < 3 {
		t.Fatalf("%d batches, want several", len(c.commits))
	}
	for i, ops := range c.commits {
		if len(ops) > 20_000 {
			t.Errorf("batch %d has %d operations", i, len(ops))
		}
	}
}

// TestListable checks that Debian's nft program lists our tables without complaint, except
// for one: in JSON it prints a statement that updates a map as text, and says so.
func TestListable(t *testing.T) {
	lab.Namespace(t)
	d, _ := openKernel(t)
	proxytest.MustSync(t, d, randomState(3, 60))
	listable(t)
	if err := d.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	listable(t)
}

func listable(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{{"list", "ruleset"}, {"-j", "list", "ruleset"}} {
		cmd := exec.Command("nft", args...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		complaints := strings.ReplaceAll(stderr.String(), "warning: stmt ops map have no json callback\n", "")
		if err != nil || complaints != "" {
			t.Fatalf("nft %v: %v: %s", args, err, complaints)
		}
		if args[0] == "-j" && !json.Valid(out) {
			t.Errorf("nft %v prints no JSON", args)
		}
		if strings.Contains(string(out), "invalid") || strings.Contains(string(out), "unknown") {
			t.Errorf("nft %v shows something it does not understand:\n%s", args, out)
		}
		if args[0] == "list" && !strings.Contains(string(out), "written by sluice") {
			t.Errorf("nft %v does not print the comment of our tables", args)
		}
	}
}

// TestWatchAndRepair checks that Watch reports when another process flushes our ruleset.
func TestWatchAndRepair(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	lab.Namespace(t)
	d, c := openKernel(t)
	proxytest.MustSync(t, d, plainState(10))
	seen, ended := make(chan string, 100), make(chan error, 1)
	go func() {
		ended <- d.Watch(ctx, func() {}, func(what string) {
			select {
			case seen <- what:
			default: // more than anybody looks at
			}
		})
	}()
	other := nfttest.Open(t)
	for len(seen) == 0 { // until the watch has begun
		proxytest.MustSync(t, d, plainState(10))
		var b nft.Batch
		b.DeleteTable(d.tables[0].Table)
		nfttest.Commit(t, other, &b)
	}
	if what := <-seen; !strings.Contains(what, "table ip sluice") {
		t.Errorf("Watch reported %q", what)
	}
	proxytest.MustSync(t, d, plainState(10))
	if got := strings.Count(dump(t, c, d), "table ip sluice endpoints "); got != 100 {
		t.Errorf("%d endpoint elements after repair, want 100", got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestProbe checks that Probe returns the supported families, changes nothing, and names what
// is missing.
func TestProbe(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	families, err := Alone.Probe(ctx, mode.Settings{MasqueradeBit: 14})
	if err != nil || len(families) != 2 {
		t.Fatalf("Probe gave %v, %v", families, err)
	}
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("Probe left something: %v\n%s", err, out)
	}
	c := &counter{Interface: nfttest.NewFake()}
	if err := Alone.probe(ctx, c, proxy.IPv4, 14); err != nil || len(c.commits) != 1 {
		t.Fatalf("probe made %d batches, error %v; want one", len(c.commits), err)
	}
	for _, want := range []class{{scope: proxy.ScopeLocal, count: 1}, {scope: proxy.ScopeLocal, count: 1, timeout: time.Second}} {
		made := func(op nft.Op) bool { return op.Kind == nft.AddChain && op.Chain.Name == want.chain() }
		if !slices.ContainsFunc(c.commits[0], made) {
			t.Errorf("Probe did not try chain %s", want.chain())
		}
	}

	dropNetAdmin(t)
	_, err = Alone.Probe(ctx, mode.Settings{MasqueradeBit: 14})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "NET_ADMIN") {
		t.Errorf("Probe without the capability gave %v", err)
	}
}

// dropNetAdmin takes all capabilities from the test's thread, which ends with the test.
func dropNetAdmin(t *testing.T) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
}

// TestSingleFamily checks that the table of the other family stays unchanged.
func TestSingleFamily(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	d := Alone.New(conn, mode.Settings{Families: []proxy.Family{proxy.IPv6}})
	defer d.Close()
	proxytest.MustSync(t, d, randomState(2, 30))
	proxytest.MustApply(t, d, deltaBetween(randomState(2, 30), randomState(3, 30)))
	if l, _ := conn.List(ctx, nft.Table{Family: nft.IP, Name: tableName}); l != nil {
		t.Error("there is an IPv4 table")
	}
	if l, _ := conn.List(ctx, nft.Table{Family: nft.IP6, Name: tableName}); l == nil {
		t.Error("there is no IPv6 table")
	}
}

// TestCleanup checks that only our tables are removed.
func TestCleanup(t *testing.T) {
	ctx := context.Background()
	lab.Namespace(t)
	d, c := openKernel(t)
	proxytest.MustSync(t, d, randomState(2, 30))
	var b nft.Batch
	b.AddTable(nft.Table{Family: nft.IP, Name: "someone"})
	nfttest.Commit(t, c, &b)
	for range 2 { // a second time there is nothing to do
		if _, err := Alone.Cleanup(ctx, Keep{}); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("nft", "list", "tables").CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != "table ip someone" {
		t.Errorf("left %q, %v", got, err)
	}
}

// TestCleanupKeepsOpenTables checks that the tables of an open dataplane are kept, also if
// another mode embeds the dataplane, unless that mode has its own tables.
func TestCleanupKeepsOpenTables(t *testing.T) {
	type embedding struct{ *Dataplane }
	open := func(o Overlay) *Dataplane { return o.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14}) }
	for _, tt := range []struct {
		name string
		open proxy.Dataplane
		want bool
	}{
		{"none", nil, false},
		{"mode nftables", open(Alone), true},
		{"a mode on our tables", embedding{open(Alone)}, true},
		{"a mode with its own tables", embedding{open(Overlay{Table: "sluice-other"})}, false},
	} {
		if got := keepFor(tt.open).Tables; got != tt.want {
			t.Errorf("%s: keep tables is %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestBatchesMoveFrontendsAtomically writes a large change in many batches. After each of
// them, a frontend that moves from one row to another belongs to one of them.
func TestBatchesMoveFrontendsAtomically(t *testing.T) {
	ctx := context.Background()
	fake := nfttest.NewFake()
	d := Alone.New(fake, mode.Settings{MasqueradeBit: 14})
	d.applyBytes = 1
	s := plainState(0)
	gone, heir := plainRow(900, 10, 0), plainRow(499, 10, 0)
	s.Rows[gone.Key] = gone
	proxytest.MustSync(t, d, s)
	heir.Frontends = append(heir.Frontends, proxy.Frontend{Kind: proxy.ExternalIP, Addr: gone.Frontends[0].Addr})
	delta := &proxy.Delta{Removes: []*proxy.ServicePort{gone}, Upserts: []proxy.Upsert{{New: heir}}}
	for i := range 20 {
		delta.Upserts = append(delta.Upserts, proxy.Upsert{New: plainRow(i, 10, 0)})
	}
	batches := 0
	moved := d.tables[0].addresses.key(proxy.TCP, gone.Frontends[0].Addr)
	d.conn = &afterEach{fake, func() {
		batches++
		leads := false
		if err := fake.Elements(ctx, d.tables[0].addresses.dispatch, func(e nft.Element) { leads = leads || e.Key == moved }); err != nil || !leads {
			t.Errorf("after batch %d the frontend has no Service (%v)", batches, err)
		}
	}}
	proxytest.MustApply(t, d, delta)
	if batches < 20 {
		t.Errorf("%d batches only", batches)
	}
	d.conn = fake
	want := Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14})
	s.Apply(delta)
	proxytest.MustSync(t, want, s)
	if diff := cmp.Diff(dump(t, want.conn, want), dump(t, fake, d)); diff != "" {
		t.Errorf("differs from a Sync of the same state (-want +got):\n%s", diff)
	}
}

// TestBatchesRefuseNoClients changes a LoadBalancer whose endpoints are all on other nodes to
// externalTrafficPolicy Local, in many batches. Clients from elsewhere must reach an
// endpoint until they are dropped.
func TestBatchesRefuseNoClients(t *testing.T) {
	ctx := context.Background()
	was, is := plainRow(0, 3, 0), plainRow(0, 3, 0)
	at := proxy.Frontend{Kind: proxy.LoadBalancer, Addr: addrPort(1<<24, 0, 80)}
	was.Frontends, is.Frontends = append(was.Frontends, at), append(is.Frontends, at)
	is.External = proxy.ScopeLocal
	for _, method := range []string{"Apply", "Sync", "Apply back"} {
		from, to := was, is
		if method == "Apply back" {
			from, to = is, was
		}
		fake := nfttest.NewFake()
		d := Alone.New(fake, mode.Settings{MasqueradeBit: 14})
		d.applyBytes, d.syncBytes = 1, 1
		s := plainState(0)
		s.Rows[from.Key] = from
		proxytest.MustSync(t, d, s)
		m := &d.tables[0].addresses
		has := func(set *nft.Set) (found bool) {
			key := m.key(proxy.TCP, at.Addr)
			if err := fake.Elements(ctx, set, func(e nft.Element) { found = found || e.Key == key }); err != nil {
				t.Fatal(err)
			}
			return found
		}
		batches := 0
		d.conn = &afterEach{fake, func() {
			if batches++; has(m.external) && !has(m.noEndpoints) {
				t.Errorf("%s: after batch %d clients from elsewhere are neither sent to an endpoint nor dropped", method, batches)
			}
		}}
		s.Rows[to.Key] = to
		var err error
		if method == "Sync" {
			err = proxytest.Sync(ctx, d, s)
		} else {
			err = proxytest.Apply(ctx, d, &proxy.Delta{Upserts: []proxy.Upsert{{Old: from, New: to}}})
		}
		if err != nil || batches < 3 {
			t.Errorf("%s: error %v after %d batches; want none after some", method, err, batches)
		}
	}
}

// TestWriteReleasesChanges checks that no change is referenced after it was written: a Sync
// may have as many changes as there are elements.
func TestWriteReleasesChanges(t *testing.T) {
	d := Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14})
	d.applyBytes = 1 << 30
	proxytest.MustSync(t, d, plainState(0))
	delta := &proxy.Delta{}
	for i := range 2000 {
		delta.Upserts = append(delta.Upserts, proxy.Upsert{New: plainRow(i, 10, 0)})
	}
	proxytest.MustApply(t, d, delta)
	if n := cap(d.batch.Ops); n > 10_000 {
		t.Errorf("memory for %d operations is kept after a batch of more than 20,000", n)
	}
	for _, op := range d.batch.Ops[:cap(d.batch.Ops)] {
		if op.Owner != nil {
			t.Fatalf("%v keeps its change, and that all others", &op)
		}
	}
}

// afterEach calls a function after each batch.
type afterEach struct {
	nft.Interface
	f func()
}

func (a *afterEach) Commit(ctx context.Context, b *nft.Batch) error {
	err := a.Interface.Commit(ctx, b)
	a.f()
	return err
}

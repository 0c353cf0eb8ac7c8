package nft_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
)

// TestContract checks that the kernel and the Fake behave the same.
func TestContract(t *testing.T) {
	implementations := map[string]func(*testing.T) nft.Interface{
		"kernel": func(t *testing.T) nft.Interface { return openInNamespace(t) },
		"fake":   func(*testing.T) nft.Interface { return nfttest.NewFake() },
	}
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			for _, c := range contract {
				t.Run(c.name, func(t *testing.T) { runContract(t, open(t), c) })
			}
		})
	}
}

// openInNamespace opens nf_tables in a new network namespace, which ends with the test's
// thread.
func openInNamespace(t testing.TB) *nft.Conn {
	t.Helper()
	lab.Namespace(t)
	c := nfttest.Open(t)
	return c
}

var (
	testTable = nft.Table{nft.IP, "contract"}
	plain     = &nft.Set{Table: testTable, Name: "plain", Key: []nft.Type{nft.IPv4Addr}, Comment: "a set"}
	verdicts  = &nft.Set{Table: testTable, Name: "verdicts", Key: []nft.Type{nft.Proto, nft.Port}, Verdicts: true}
	values    = &nft.Set{Table: testTable, Name: "values", Key: []nft.Type{nft.IPv4Addr, nft.Mark}, Data: []nft.Type{nft.IPv4Addr, nft.Port}}
	learned   = &nft.Set{Table: testTable, Name: "learned", Key: []nft.Type{nft.IPv4Addr, nft.Mark}, Dynamic: true, Size: 100}
)

// step is a batch and the error that Commit must return.
type step struct {
	build  func(*nft.Batch)
	want   error // nil, or the errno of the refused operation
	refuse nft.OpKind
}

type contractCase struct {
	name     string
	steps    []step
	chains   map[string][]string
	elements map[*nft.Set][]string
}

func base(b *nft.Batch) {
	b.AddTable(testTable)
	for _, s := range []*nft.Set{plain, verdicts, values, learned} {
		b.AddSet(s)
	}
	b.AddChain(testTable, &nft.Chain{Name: "target"})
}

func word(v uint32) string { return string(binary.BigEndian.AppendUint32(nil, v)) }

func verdictKey(port uint16) string {
	return string([]byte{6, 0, 0, 0, byte(port >> 8), byte(port), 0, 0})
}

func lookupRule(comment string) *nft.Rule {
	return &nft.Rule{Comment: comment, Exprs: []expr.Any{
		&expr.Payload{DestRegister: nft.Register(0), Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Lookup{SourceRegister: nft.Register(0), SetName: plain.Name},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}}
}

func jumpRule(chain string) *nft.Rule {
	return &nft.Rule{Comment: "jump", Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}}
}

var contract = []contractCase{
	{
		name: "adding twice is no error", steps: []step{{build: base}, {build: base}},
		chains: map[string][]string{"target": nil},
	},
	{name: "elements of all kinds", steps: []step{{build: base}, {build: func(b *nft.Batch) {
		b.AddElement(plain, nft.Element{Key: word(1)})
		b.AddElement(verdicts, nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Goto, Chain: "target"}})
		b.AddElement(verdicts, nft.Element{Key: verdictKey(81), Verdict: nft.Verdict{Code: nft.Drop}})
		b.AddElement(values, nft.Element{Key: word(1) + word(0), Data: word(7) + "\x00\x50\x00\x00"})
	}}}, chains: map[string][]string{"target": nil}, elements: map[*nft.Set][]string{
		plain:    {fmt.Sprint(nft.Element{Key: word(1)})},
		verdicts: {fmt.Sprint(nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Goto, Chain: "target"}}), fmt.Sprint(nft.Element{Key: verdictKey(81), Verdict: nft.Verdict{Code: nft.Drop}})},
		values:   {fmt.Sprint(nft.Element{Key: word(1) + word(0), Data: word(7) + "\x00\x50\x00\x00"})},
	}},
	{
		name: "an element again is no error, with another value it is", steps: []step{
			{build: base},
			{build: func(b *nft.Batch) {
				b.AddElement(verdicts, nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Drop}})
			}},
			{build: func(b *nft.Batch) {
				b.AddElement(verdicts, nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Drop}})
			}},
			{build: func(b *nft.Batch) {
				b.AddElement(plain, nft.Element{Key: word(1)}) // undone with the rest
				b.AddElement(verdicts, nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Goto, Chain: "target"}})
			}, want: unix.EEXIST, refuse: nft.AddElement},
		},
		chains:   map[string][]string{"target": nil},
		elements: map[*nft.Set][]string{plain: nil, verdicts: {fmt.Sprint(nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Drop}})}},
	},
	{
		name: "delete and add in one batch replaces", steps: []step{
			{build: base},
			{build: func(b *nft.Batch) {
				b.AddElement(verdicts, nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Drop}})
			}},
			{build: func(b *nft.Batch) {
				b.DeleteElement(verdicts, nft.Element{Key: verdictKey(80)})
				b.AddElement(verdicts, nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Goto, Chain: "target"}})
			}},
		}, chains: map[string][]string{"target": nil},
		elements: map[*nft.Set][]string{verdicts: {fmt.Sprint(nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Goto, Chain: "target"}})}},
	},
	{
		name: "deleting what is not there", steps: []step{
			{build: base},
			{build: func(b *nft.Batch) { b.DeleteElement(plain, nft.Element{Key: word(1)}) }, want: unix.ENOENT, refuse: nft.DeleteElement},
			{build: func(b *nft.Batch) { b.DeleteChain(testTable, "nowhere") }, want: unix.ENOENT, refuse: nft.DeleteChain},
			{build: func(b *nft.Batch) { b.DeleteTable(nft.Table{nft.IP, "nowhere"}) }, want: unix.ENOENT, refuse: nft.DeleteTable},
		},
		chains: map[string][]string{"target": nil},
	},
	{name: "a verdict to a chain that is not there", steps: []step{
		{build: base},
		{build: func(b *nft.Batch) {
			b.AddElement(verdicts, nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Goto, Chain: "nowhere"}})
		}, want: unix.ENOENT, refuse: nft.AddElement},
	}, chains: map[string][]string{"target": nil}, elements: map[*nft.Set][]string{verdicts: nil}},
	{
		name: "a set goes unless a rule refers to it", steps: []step{
			{build: base},
			{build: func(b *nft.Batch) {
				b.AddElement(verdicts, nft.Element{Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Goto, Chain: "target"}})
				b.AddRule(testTable, "target", lookupRule("one"))
			}},
			{build: func(b *nft.Batch) { b.DeleteSet(testTable, plain.Name) }, want: unix.EBUSY, refuse: nft.DeleteSet},
			{build: func(b *nft.Batch) { b.DeleteSet(testTable, verdicts.Name) }},
			{build: func(b *nft.Batch) { b.DeleteSet(testTable, verdicts.Name) }, want: unix.ENOENT, refuse: nft.DeleteSet},
			{build: func(b *nft.Batch) { b.AddSet(verdicts) }},
		},
		chains: map[string][]string{"target": {"one"}}, elements: map[*nft.Set][]string{verdicts: nil},
	},
	{
		name: "rules keep their order, a flush empties", steps: []step{{build: base}, {build: func(b *nft.Batch) {
			b.AddRule(testTable, "target", lookupRule("one"))
			b.AddRule(testTable, "target", lookupRule("two"))
		}}, {build: func(b *nft.Batch) {
			b.AddChain(testTable, &nft.Chain{Name: "other"})
			b.AddRule(testTable, "other", lookupRule("three"))
			b.AddRule(testTable, "other", jumpRule("target"))
		}}, {build: func(b *nft.Batch) { b.FlushChain(testTable, "target") }}},
		chains: map[string][]string{"target": nil, "other": {"three", "jump"}},
	},
	{
		name: "what is referred to stays", steps: []step{
			{build: base},
			{build: func(b *nft.Batch) {
				b.AddChain(testTable, &nft.Chain{Name: "other"})
				b.AddRule(testTable, "other", lookupRule("one"))
				b.AddRule(testTable, "other", jumpRule("target"))
			}},
			{build: func(b *nft.Batch) { b.DeleteChain(testTable, "target") }, want: unix.EBUSY, refuse: nft.DeleteChain},
			{build: func(b *nft.Batch) {
				b.FlushChain(testTable, "other")
				b.DeleteChain(testTable, "target")
			}},
		},
		chains: map[string][]string{"other": nil},
	},
	{name: "a batch may make and unmake a table", steps: []step{{build: func(b *nft.Batch) { base(b); b.DeleteTable(testTable) }}}},
}

func runContract(t *testing.T, nf nft.Interface, c contractCase) {
	ctx := context.Background()
	for i, s := range c.steps {
		var b nft.Batch
		s.build(&b)
		err := nf.Commit(ctx, &b)
		if !errors.Is(err, s.want) || (s.want == nil) != (err == nil) {
			t.Fatalf("step %d: got error %v, want %v", i, err, s.want)
		}
		var ce *nft.CommitError
		if s.want != nil && (!errors.As(err, &ce) || ce.Failures[0].Op.Kind != s.refuse) {
			t.Errorf("step %d: %v does not name %v", i, err, s.refuse)
		}
	}
	l, err := nf.List(ctx, testTable)
	if err != nil {
		t.Fatal(err)
	}
	var chains map[string][]string
	if l != nil {
		chains = map[string][]string{}
		for name, rules := range l.Chains {
			chains[name] = comments(rules)
		}
		for _, s := range []*nft.Set{plain, verdicts, values, learned} {
			if got := l.Sets[s.Name]; got != s.Shape() {
				t.Errorf("set %s is %q, want %q", s.Name, got, s.Shape())
			}
		}
	}
	if diff := cmp.Diff(c.chains, chains); diff != "" {
		t.Errorf("chains mismatch (-want +got):\n%s", diff)
	}
	for s, want := range c.elements {
		var got []string
		if err := nf.Elements(ctx, s, func(e nft.Element) { got = append(got, fmt.Sprint(e)) }); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("elements of %s mismatch (-want +got):\n%s", s.Name, diff)
		}
	}
}

func comments(rules []nft.ListedRule) (out []string) {
	for _, r := range rules {
		out = append(out, r.Comment)
	}
	return out
}

// TestManyElements writes more than fits into a message, a default socket buffer and one part
// of a dump.
func TestManyElements(t *testing.T) {
	ctx := context.Background()
	c := openInNamespace(t)
	var b nft.Batch
	base(&b)
	const n = 100_000
	for i := range uint32(n) {
		b.AddElement(values, nft.Element{Key: word(i) + word(0), Data: word(i) + "\x00\x50\x00\x00"})
	}
	nfttest.Commit(t, c, &b)
	// While the kernel still grows the hash table, a listing may omit elements.
	for deadline := time.Now().Add(10 * time.Second); ; {
		seen := map[string]bool{}
		if err := c.Elements(ctx, values, func(e nft.Element) { seen[e.Key] = true }); err != nil {
			t.Fatal(err)
		}
		if len(seen) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("listed %d elements, want %d", len(seen), n)
		}
	}
}

// TestCommitErrorNamesOperation checks that the error names the one bad element among many,
// and that nothing is written.
func TestCommitErrorNamesOperation(t *testing.T) {
	ctx := context.Background()
	c := openInNamespace(t)
	var b nft.Batch
	base(&b)
	nfttest.Commit(t, c, &b)
	b.Reset()
	for port := range uint16(1000) {
		b.Owner = port
		chain := "target"
		if port == 500 {
			chain = "nowhere"
		}
		b.AddElement(verdicts, nft.Element{Key: verdictKey(port), Verdict: nft.Verdict{Code: nft.Goto, Chain: chain}})
	}
	var ce *nft.CommitError
	if err := c.Commit(ctx, &b); !errors.As(err, &ce) {
		t.Fatalf("got %v, want a CommitError", err)
	}
	if len(ce.Failures) != 1 || ce.Failures[0].Op.Owner != uint16(500) {
		t.Errorf("error names %v", ce)
	}
	n := 0
	if err := c.Elements(ctx, verdicts, func(nft.Element) { n++ }); err != nil || n != 0 {
		t.Errorf("%d elements after a refused batch, error %v", n, err)
	}
}

// TestWatch checks that Watch reports what another connection changes in our table, and neither
// our own changes nor those in other tables.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c := openInNamespace(t)
	other := nfttest.Open(t)
	seen := make(chan string, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Watch(ctx, []nft.Table{testTable}, func() {}, func(what string) {
			select {
			case seen <- what:
			default: // more than anybody looks at
			}
		})
	}()
	commit := func(c *nft.Conn, build func(*nft.Batch)) {
		t.Helper()
		var b nft.Batch
		build(&b)
		nfttest.Commit(t, c, &b)
	}
	commit(c, base)
	// It is not known when the goroutine starts to watch: make changes until one is reported.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := uint32(0); len(seen) == 0; i++ {
		select {
		case err := <-ended:
			t.Fatalf("the watch ended: %v", err)
		case <-tick.C:
		}
		commit(other, func(b *nft.Batch) { b.AddElement(plain, nft.Element{Key: word(i)}) })
	}
	for len(seen) > 0 {
		<-seen
	}
	commit(c, func(b *nft.Batch) { b.AddElement(plain, nft.Element{Key: word(1 << 30)}) })
	commit(other, func(b *nft.Batch) { b.AddTable(nft.Table{nft.IP, "someone"}) })
	commit(other, func(b *nft.Batch) { b.AddElement(plain, nft.Element{Key: word(1 << 31)}) })
	if what := <-seen; what != fmt.Sprintf("element added in set %s of table ip contract by %s, process %d", plain.Name, processName(t), unix.Gettid()) {
		t.Errorf("saw %q first", what)
	}
	commit(other, func(b *nft.Batch) { b.DeleteTable(testTable) })
	if what := <-seen; what == "" {
		t.Error("Watch did not report the deletion")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestWatchMissed checks that Watch calls missed if another connection changed anything before
// it started, and not for our own changes.
func TestWatchMissed(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		t.Run(fmt.Sprintf("foreign=%t", foreign), func(t *testing.T) {
			c := openInNamespace(t)
			other := nfttest.Open(t)
			commit := func(c *nft.Conn, build func(*nft.Batch)) error {
				var b nft.Batch
				build(&b)
				return c.Commit(t.Context(), &b)
			}
			err := commit(c, base)
			for i := range uint32(3) {
				err = errors.Join(err, commit(c, func(b *nft.Batch) { b.AddElement(plain, nft.Element{Key: word(i)}) }))
			}
			if foreign {
				err = errors.Join(err, commit(other, func(b *nft.Batch) { b.DeleteTable(testTable) }))
			}
			if err != nil {
				t.Fatal(err)
			}
			if refused := commit(c, func(b *nft.Batch) { b.DeleteTable(nft.Table{nft.IP, "absent"}) }); refused == nil {
				t.Fatal("a missing table was deleted")
			}
			ctx, cancel := context.WithCancel(t.Context())
			missed := false
			cancel() // It ends with its first look.
			if err := c.Watch(ctx, []nft.Table{testTable}, func() { missed = true }, func(string) {}); err != nil {
				t.Fatal(err)
			}
			if missed != foreign {
				t.Errorf("missed something: %t, want %t", missed, foreign)
			}
		})
	}
}

// TestCount counts a set's elements, whether the kernel reports their number or they are
// listed.
func TestCount(t *testing.T) {
	ctx := context.Background()
	c := openInNamespace(t)
	reader := nfttest.Open(t)
	if _, err := reader.Count(ctx, plain); !errors.Is(err, unix.ENOENT) {
		t.Errorf("Count of a missing set returned %v", err)
	}
	var b nft.Batch
	base(&b)
	for i := range uint32(7) {
		b.AddElement(plain, nft.Element{Key: word(i)})
	}
	nfttest.Commit(t, c, &b)
	listed := 0
	if err := c.Elements(ctx, plain, func(nft.Element) { listed++ }); err != nil {
		t.Fatal(err)
	}
	if n, err := reader.Count(ctx, plain); err != nil || n != 7 || listed != 7 {
		t.Errorf("counted %d, %v, listed %d; want 7", n, err, listed)
	}
}

// TestSingleReads reads single elements and chains.
func TestSingleReads(t *testing.T) {
	conn := openInNamespace(t)
	var b nft.Batch
	base(&b)
	elements := map[*nft.Set]nft.Element{
		plain:    {Key: word(1)},
		verdicts: {Key: verdictKey(80), Verdict: nft.Verdict{Code: nft.Goto, Chain: "target"}},
		values:   {Key: word(1) + word(0), Data: word(7) + "\x00\x50\x00\x00"},
	}
	for s, e := range elements {
		b.AddElement(s, e)
	}
	b.AddRule(testTable, "target", lookupRule("one"))
	nfttest.Commit(t, conn, &b)
	for s, want := range elements {
		got, found, err := conn.Element(t.Context(), s, nft.Element{Key: want.Key})
		if err != nil || !found || got != want {
			t.Errorf("%s: %v, found %t, error %v; want %v", s.Name, got, found, err, want)
		}
	}
	for _, other := range []struct {
		set *nft.Set
		key nft.Element
	}{{plain, nft.Element{Key: word(2)}}, {&nft.Set{Table: testTable, Name: "none"}, nft.Element{Key: word(1)}}} {
		if got, found, err := conn.Element(t.Context(), other.set, other.key); found || err != nil {
			t.Errorf("%s: found %v, which does not exist, error %v", other.set.Name, got, err)
		}
	}
	rules, err := conn.Rules(t.Context(), testTable, "target")
	if want := lookupRule("one").Listed(testTable.Family); err != nil || len(rules) != 1 || rules[0] != want {
		t.Errorf("rules %v, error %v; want %v", rules, err, want)
	}
	if rules, err := conn.Rules(t.Context(), testTable, "none"); rules != nil || err != nil {
		t.Errorf("rules of no chain: %v, error %v", rules, err)
	}
}

// processName returns the name of the calling thread, by which the kernel reports who changed
// something.
func processName(t *testing.T) string {
	t.Helper()
	name, err := os.ReadFile("/proc/thread-self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(name))
}

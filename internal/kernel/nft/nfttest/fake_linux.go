package nfttest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
)

// Fake is nf_tables in memory. It refuses what the kernel refuses, with the
// kernel's error numbers, and counts what it is asked to do.
type Fake struct {
	mu      sync.Mutex
	tables  map[nft.Table]*fakeTable
	commits int
	lists   int
	ops     map[nft.OpKind]int
}

type fakeTable struct {
	chains map[string]*fakeChain
	sets   map[string]*fakeSet
}

type fakeChain struct {
	hook  *nft.Hook
	rules []*nft.Rule
	uses  int // jumps and gotos to it, from rules and elements
}

type fakeSet struct {
	set      nft.Set
	elements map[string]nft.Element
}

// NewFake returns an empty nf_tables.
func NewFake() *Fake {
	return &Fake{tables: map[nft.Table]*fakeTable{}, ops: map[nft.OpKind]int{}}
}

// Count counts what a Fake was asked to do since the last Reset.
type Count struct {
	Commits int
	Lists   int // listings of tables or elements
	Ops     map[nft.OpKind]int
}

// Elements returns the number of operations on elements.
func (c Count) Elements() int { return c.Ops[nft.AddElement] + c.Ops[nft.DeleteElement] }

// Others returns the number of operations on anything but elements.
func (c Count) Others() int {
	n := -c.Elements()
	for _, v := range c.Ops {
		n += v
	}
	return n
}

// Reset returns the count and resets it.
func (f *Fake) Reset() Count {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := Count{Commits: f.commits, Lists: f.lists, Ops: f.ops}
	f.commits, f.lists, f.ops = 0, 0, map[nft.OpKind]int{}
	return c
}

// Commit applies all operations. If it refuses one, it undoes those before it and returns an
// [nft.CommitError] with the first refused operation.
func (f *Fake) Commit(ctx context.Context, b *nft.Batch) error {
	if err := ctx.Err(); err != nil || len(b.Ops) == 0 {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commits++
	var undo []func()
	for i := range b.Ops {
		op := &b.Ops[i]
		u, err := f.do(op)
		if err != nil {
			for _, u := range slices.Backward(undo) {
				u()
			}
			return &nft.CommitError{Failures: []nft.Failure{{Op: op, Err: err}}}
		}
		f.ops[op.Kind]++
		if u != nil {
			undo = append(undo, u)
		}
	}
	return nil
}

// do applies one operation and returns a function that undoes it; nil if nothing changed.
func (f *Fake) do(op *nft.Op) (undo func(), err error) {
	switch op.Kind {
	case nft.AddTable:
		return f.addTable(op.Table)
	case nft.DeleteTable:
		t := f.tables[op.Table]
		if t == nil {
			return nil, unix.ENOENT
		}
		delete(f.tables, op.Table)
		return func() { f.tables[op.Table] = t }, nil
	}
	t := f.tables[op.Table]
	if t == nil {
		return nil, unix.ENOENT
	}
	if op.Kind != nft.AddRule && op.Set != nil && strings.HasPrefix(op.Set.Name, nft.AnonymousSetPrefix) {
		return nil, nil // anonymous set: the rule that follows has its elements
	}
	switch op.Kind {
	case nft.AddChain:
		return t.addChain(op.Chain)
	case nft.FlushChain, nft.DeleteChain:
		return t.clearChain(op.Chain.Name, op.Kind == nft.DeleteChain)
	case nft.AddRule:
		return t.addRule(op.Chain.Name, op.Rule)
	case nft.AddSet:
		return t.addSet(op.Set)
	case nft.DeleteSet:
		return t.deleteSet(op.Set.Name)
	case nft.AddElement:
		return t.addElement(op.Set.Name, op.Element)
	default:
		return t.deleteElement(op.Set.Name, op.Element)
	}
}

func (f *Fake) addTable(t nft.Table) (func(), error) {
	if f.tables[t] != nil {
		return nil, nil
	}
	f.tables[t] = &fakeTable{chains: map[string]*fakeChain{}, sets: map[string]*fakeSet{}}
	return func() { delete(f.tables, t) }, nil
}

func (t *fakeTable) addChain(c *nft.Chain) (func(), error) {
	if t.chains[c.Name] != nil {
		return nil, nil
	}
	t.chains[c.Name] = &fakeChain{hook: c.Hook}
	return func() { delete(t.chains, c.Name) }, nil
}

// clearChain flushes a chain, and deletes it if asked and nothing refers to it.
func (t *fakeTable) clearChain(name string, remove bool) (func(), error) {
	c := t.chains[name]
	if c == nil {
		return nil, unix.ENOENT
	}
	if remove && c.uses > 0 {
		return nil, unix.EBUSY
	}
	rules := c.rules
	c.rules = nil
	t.refer(rules, -1)
	if remove {
		delete(t.chains, name)
	}
	return func() {
		t.chains[name] = c
		c.rules = rules
		t.refer(rules, +1)
	}, nil
}

func (t *fakeTable) addRule(chain string, r *nft.Rule) (func(), error) {
	c := t.chains[chain]
	if c == nil || !t.resolves(r) {
		return nil, unix.ENOENT
	}
	c.rules = append(c.rules, r)
	t.refer([]*nft.Rule{r}, +1)
	return func() {
		c.rules = c.rules[:len(c.rules)-1]
		t.refer([]*nft.Rule{r}, -1)
	}, nil
}

// resolves reports whether all chains and sets that a rule refers to exist.
func (t *fakeTable) resolves(r *nft.Rule) bool {
	ok := true
	references(r, func(chain string) { ok = ok && t.chains[chain] != nil },
		func(set string) { ok = ok && t.sets[set] != nil })
	return ok
}

// refer changes the reference counts of the chains that rules jump to.
func (t *fakeTable) refer(rules []*nft.Rule, by int) {
	for _, r := range rules {
		references(r, func(chain string) { t.chains[chain].uses += by }, func(string) {})
	}
}

// references calls the functions for each chain and set that a rule names.
func references(r *nft.Rule, chain, set func(string)) {
	for _, x := range r.Exprs {
		switch x := x.(type) {
		case *expr.Verdict:
			if x.Chain != "" {
				chain(x.Chain)
			}
		case *expr.Lookup:
			if x.SetName != "" { // otherwise it is anonymous
				set(x.SetName)
			}
		case *expr.Dynset:
			set(x.SetName)
		}
	}
}

func (t *fakeTable) addSet(s *nft.Set) (func(), error) {
	if old := t.sets[s.Name]; old != nil {
		if old.set.Shape() != s.Shape() {
			return nil, unix.EEXIST
		}
		return nil, nil
	}
	t.sets[s.Name] = &fakeSet{set: *s, elements: map[string]nft.Element{}}
	return func() { delete(t.sets, s.Name) }, nil
}

func (t *fakeTable) deleteSet(name string) (func(), error) {
	s := t.sets[name]
	if s == nil {
		return nil, unix.ENOENT
	}
	used := false
	for _, c := range t.chains {
		for _, r := range c.rules {
			references(r, func(string) {}, func(set string) { used = used || set == name })
		}
	}
	if used {
		return nil, unix.EBUSY
	}
	delete(t.sets, name)
	for _, e := range s.elements {
		t.use(e.Verdict.Chain, -1)
	}
	return func() {
		t.sets[name] = s
		for _, e := range s.elements {
			t.use(e.Verdict.Chain, +1)
		}
	}, nil
}

func (t *fakeTable) addElement(set string, e nft.Element) (func(), error) {
	s := t.sets[set]
	if s == nil {
		return nil, unix.ENOENT
	}
	if err := t.check(s, e); err != nil {
		return nil, err
	}
	if old, ok := s.elements[e.Key]; ok {
		if old != e {
			return nil, unix.EEXIST
		}
		return nil, nil
	}
	s.elements[e.Key] = e
	t.use(e.Verdict.Chain, +1)
	return func() {
		delete(s.elements, e.Key)
		t.use(e.Verdict.Chain, -1)
	}, nil
}

// check returns the kernel's error for an element that does not fit its set.
func (t *fakeTable) check(s *fakeSet, e nft.Element) error {
	switch {
	case len(e.Key) != s.set.KeyLen(), len(e.Data) != s.set.DataLen():
		return unix.EINVAL
	case (e.Verdict.Code != 0) != s.set.Verdicts:
		return unix.EINVAL
	}
	if c := e.Verdict.Chain; c != "" {
		if t.chains[c] == nil {
			return unix.ENOENT
		}
		if t.chains[c].hook != nil {
			return syscall.EOPNOTSUPP
		}
	}
	return nil
}

func (t *fakeTable) deleteElement(set string, e nft.Element) (func(), error) {
	s := t.sets[set]
	if s == nil {
		return nil, unix.ENOENT
	}
	old, ok := s.elements[e.Key]
	if !ok {
		return nil, unix.ENOENT
	}
	delete(s.elements, e.Key)
	t.use(old.Verdict.Chain, -1)
	return func() {
		s.elements[e.Key] = old
		t.use(old.Verdict.Chain, +1)
	}, nil
}

func (t *fakeTable) use(chain string, by int) {
	if chain != "" {
		t.chains[chain].uses += by
	}
}

// List implements [nft.Interface].
func (f *Fake) List(_ context.Context, t nft.Table) (*nft.Listing, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	ft := f.tables[t]
	if ft == nil {
		return nil, nil
	}
	l := nft.NewListing()
	for name, c := range ft.chains {
		l.Chains[name] = nil
		if c.hook != nil {
			l.Hooks[name] = c.hook.String()
		}
		for _, r := range c.rules {
			l.Chains[name] = append(l.Chains[name], r.Listed(t.Family))
		}
	}
	for name, s := range ft.sets {
		l.Sets[name] = s.set.Shape()
	}
	return l, nil
}

// Elements implements [nft.Interface]. Elements are sorted by key.
func (f *Fake) Elements(_ context.Context, s *nft.Set, yield func(nft.Element)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	t := f.tables[s.Table]
	if t == nil || t.sets[s.Name] == nil {
		return unix.ENOENT
	}
	elements := t.sets[s.Name].elements
	for _, id := range slices.Sorted(maps.Keys(elements)) {
		yield(elements[id])
	}
	return nil
}

// Watch waits until ctx ends: no other process changes a Fake.
func (f *Fake) Watch(ctx context.Context, _ []nft.Table, _ func(), _ func(string)) error {
	<-ctx.Done()
	return nil
}

// Close does nothing.
func (f *Fake) Close() error { return nil }

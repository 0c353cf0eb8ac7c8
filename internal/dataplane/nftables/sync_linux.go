package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

const (
	// applyBytes bounds a batch of Apply: the kernel holds a lock for its length.
	applyBytes = 4 << 20

	// syncBytes bounds the batches of a Sync. It fits the kernel's default socket
	// buffer, for those who may not ask for a larger one.
	syncBytes = 256 << 10

	// Above maxIdle objects of classes that nothing leads to, those go to which
	// nothing led for idleTime, which is far longer than a packet takes from the
	// number to the chain.
	maxIdle  = 256
	idleTime = time.Minute
)

func (d *Dataplane) objects() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: d.constant, Row: d.row, Same: same, Sharing: sharing, Order: order, Size: size,
		Limit: d.limit, Live: rankLive, List: d.list, Write: d.write, Read: d.read, Difference: difference,
		MaxIdle: maxIdle, IdleTime: idleTime,
	}
}

// Sync makes the kernel right whatever was there before. What clients are
// remembered for stays. The last batch makes a new table live; kube-proxy's
// tables go with it.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.syncing = true
	defer func() { d.syncing = false }()
	d.absent = map[id]bool{}
	refused, err := d.differ.Sync(ctx, want)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) { // what was listed was not all that there is, or is not any more
		d.listedTwice = true
		refused, err = d.differ.Sync(ctx, want)
		d.listedTwice = false
	}
	if len(d.replaced) > 0 && (errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS)) {
		// The system does not let us send that much in one batch.
		if err := d.deleteReplaced(ctx); err != nil {
			return nil, err
		}
		refused, err = d.differ.Sync(ctx, want)
	}
	if err != nil {
		return nil, err
	}
	for _, t := range d.tables {
		t.recovered = true // from here on memory is right
		for key := range refused {
			t.blocks.remove(key)
		}
		for c := range t.classes.numbers {
			if !d.differ.HasShared(t.classElement(c)) {
				t.classes.forget(c)
			}
		}
	}
	d.localnet.Open(ctx)
	return refused, nil
}

// Apply writes the difference that changes make, in one batch unless they are
// very many.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	if changed.Node && d.differ.Node() != nil {
		d.guard = d.localnet.Guard(ctx, want.Node.OpensLoopback())
	}
	refused, err := d.differ.Apply(ctx, want, changed)
	if err == nil && changed.Node {
		d.localnet.Open(ctx)
	}
	return refused, err
}

// limit bounds batches. A table is replaced all at once: there is no moment
// without rules.
func (d *Dataplane) limit() int {
	switch {
	case !d.syncing:
		return d.applyBytes
	case len(d.replaced) > 0:
		return math.MaxInt
	default:
		return d.syncBytes
	}
}

// deleteReplaced deletes the tables that cannot be mended, but for the guard of
// loopback, which may be open.
func (d *Dataplane) deleteReplaced(ctx context.Context) error {
	var b nft.Batch
	for _, t := range d.replaced {
		if b.DeleteTable(t.Table); t.family == proxy.IPv4 && d.guard.InForce {
			t.addGuard(&b, d.guard)
		}
	}
	if err := d.conn.Commit(ctx, &b); err != nil {
		return fmt.Errorf("delete a table that is not as ours: %w", err)
	}
	return nil
}

// constant renders all that is there without any row.
func (d *Dataplane) constant(want *proxy.State, add func(id, value)) {
	for _, t := range d.tables {
		add(id{kind: aTable, t: t}, value{})
		for _, s := range t.sets() {
			add(id{kind: aSet, t: t, set: s}, value{})
		}
		for _, c := range t.constant(want.Node, want.CIDRs, d.guard) {
			add(id{kind: aChain, t: t, key: c.Name}, value{chain: c})
		}
	}
}

// row renders the difference between two forms of a row, if its family is served.
func (d *Dataplane) row(old, cur differ.Row, out *changes) error {
	sp := cmp.Or(cur.ServicePort, old.ServicePort)
	i := slices.IndexFunc(d.tables, func(t *table) bool { return sp != nil && t.family == sp.Key.Family })
	if i < 0 {
		return nil
	}
	return d.tables[i].change(old, cur, out, d.syncing)
}

// list gives what is in our tables, and kube-proxy's tables.
func (d *Dataplane) list(ctx context.Context, want *proxy.State, have func(id, value)) (rest func() error, empty bool, err error) {
	var later []func() error
	empty = true
	d.replaced = nil
	for _, t := range d.tables {
		l, err := d.conn.List(ctx, t.Table)
		if err != nil {
			return nil, false, err
		}
		if t.family == proxy.IPv4 {
			d.localnet.Find(ctx, traces(l))
			d.guard = d.localnet.Guard(ctx, want.Node.OpensLoopback())
		}
		switch {
		case l == nil:
		case !t.fits(l):
			empty, d.replaced = false, append(d.replaced, t)
			have(id{kind: aTable, t: t}, value{data: "not as ours"})
		default:
			empty = false
			elements := func() error { return d.listElements(ctx, t, l, want, have) }
			if t.recovered {
				// Later: the kernel leaves elements out while its tables still grow.
				later = append(later, elements)
			} else if err := elements(); err != nil {
				return nil, false, err
			}
			have(id{kind: aTable, t: t}, value{})
			for name, rules := range l.Chains {
				have(id{kind: aChain, t: t, key: name}, value{chain: &chain{Chain: nft.Chain{Name: name}, asListed: rules}})
			}
		}
		for key := range t.blocks.byRow {
			t.blocks.trim(key, want.Rows[key])
		}
		theirs, err := d.conn.List(ctx, nft.Table{Family: t.Table.Family, Name: kubeProxyTable})
		if err != nil {
			return nil, false, err
		}
		if theirs != nil {
			have(id{kind: otherTable, t: t}, value{})
		}
	}
	return func() error {
		for _, list := range later {
			if err := list(); err != nil {
				return err
			}
		}
		return nil
	}, empty, nil
}

// listElements gives the sets that are there and their elements.
func (d *Dataplane) listElements(ctx context.Context, t *table, l *nft.Listing, want *proxy.State, have func(id, value)) error {
	former := t.newRecovery(want)
	for _, s := range t.recoveryOrder() {
		if _, ok := l.Sets[s.Name]; !ok {
			continue
		}
		have(id{kind: aSet, t: t, set: s}, value{})
		if s.Dynamic {
			continue
		}
		err := d.conn.Elements(ctx, s, func(e nft.Element) {
			former.element(s, e)
			have(t.object(s, e))
		})
		if err != nil {
			return err
		}
	}
	former.end()
	for name := range l.Sets {
		if !slices.ContainsFunc(t.sets(), func(s *nft.Set) bool { return s.Name == name }) {
			have(id{kind: aSet, t: t, set: &nft.Set{Table: t.Table, Name: name}}, value{}) // of a former version
		}
	}
	return nil
}

// fits reports whether what is in a table can be mended: base chains hang where
// they should, sets hold what they should, and the table is awake.
func (t *table) fits(l *nft.Listing) bool {
	for _, c := range t.hooks() {
		if _, ok := l.Chains[c.Name]; ok && l.Hooks[c.Name] != c.Hook.String() {
			return false
		}
	}
	for _, s := range t.sets() {
		if have, ok := l.Sets[s.Name]; ok && have != s.Shape() {
			return false
		}
	}
	for name := range l.Hooks {
		if t.leadsTo(name) {
			return false
		}
	}
	return !l.Dormant
}

// leadsTo reports whether rules of ours may lead to a chain of this name, so that
// none may be a base chain.
func (t *table) leadsTo(name string) bool {
	prefix := func(p string) bool { return strings.HasPrefix(name, p) }
	if slices.ContainsFunc([]string{"lb-", "np-", "masq-", toTaken, toRemember, toClients}, prefix) {
		return true
	}
	return slices.ContainsFunc(t.constant(&proxy.Node{}, nil, localnet.Guard{}), func(c *chain) bool {
		return c.Name == name && c.Hook == nil
	})
}

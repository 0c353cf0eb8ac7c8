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
	// applyBytes bounds a batch of Apply: the kernel holds a lock while it processes one.
	applyBytes = 4 << 20

	// syncBytes bounds the batches of a Sync. They fit into the kernel's default socket
	// buffer, in case we may not ask for a larger one.
	syncBytes = 256 << 10

	// If more than maxIdle objects of classes are unused, those that have been unused for
	// idleTime are deleted. A packet takes far less time from the lookup of a class number
	// to the chain of the class.
	maxIdle  = 256
	idleTime = time.Minute
)

// objects returns how the differ renders, compares and writes our objects.
func (d *Dataplane) objects() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: d.constant, Row: d.row, Same: sameValue, Sharing: sharing, Order: order, Size: size,
		Limit: d.limit, Live: rankLive, List: d.list, Write: d.write, Read: d.read, Difference: difference,
		MaxIdle: maxIdle, IdleTime: idleTime,
	}
}

// Sync brings the kernel to the wanted state, whatever was there before. Remembered
// clients of session affinity stay. The last batch adds the base chains of a new
// table, which makes it take effect, and deletes kube-proxy's tables.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.syncing = true
	defer func() { d.syncing = false }()
	d.unsupported = map[id]bool{}
	refused, err := d.differ.Sync(ctx, want)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) { // the listing was incomplete or is outdated
		d.relisted = true
		refused, err = d.differ.Sync(ctx, want)
		d.relisted = false
	}
	if len(d.replaced) > 0 && (errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.ENOBUFS)) {
		// The batch is too large for the socket buffer: give up replacing the table in
		// one transaction.
		if err := d.deleteReplaced(ctx); err != nil {
			return nil, err
		}
		refused, err = d.differ.Sync(ctx, want)
	}
	if err != nil {
		return nil, err
	}
	for _, t := range d.tables {
		t.recovered = true // from now on our memory is authoritative, not the kernel
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

// Apply writes what changed rows differ in, in one batch unless it exceeds applyBytes.
// It lists nothing.
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

// limit returns the maximum size of a batch in bytes. A table is replaced in one batch of
// any size, so that there is no moment without rules.
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

// deleteReplaced deletes the tables that cannot be repaired, except for the guard of
// loopback addresses, which outsiders may be able to reach.
func (d *Dataplane) deleteReplaced(ctx context.Context) error {
	var b nft.Batch
	for _, t := range d.replaced {
		if b.DeleteTable(t.Table); t.family == proxy.IPv4 && d.guard.InForce {
			t.addGuard(&b, d.guard)
		}
	}
	if err := d.conn.Commit(ctx, &b); err != nil {
		return fmt.Errorf("delete a table that cannot be repaired: %w", err)
	}
	return nil
}

// constant renders the objects that do not depend on rows.
func (d *Dataplane) constant(want *proxy.State, add func(id, value)) {
	for _, t := range d.tables {
		add(id{kind: kindTable, t: t}, value{})
		for _, s := range t.sets() {
			add(id{kind: kindSet, t: t, set: s}, value{})
		}
		for _, c := range t.constantChains(want.Node, want.CIDRs, d.guard) {
			add(id{kind: kindChain, t: t, key: c.Name}, value{chain: c})
		}
	}
}

// row renders the difference between the old and the current form of a row. Rows of a
// family that is not served render to nothing.
func (d *Dataplane) row(old, cur differ.Row, out *changes) error {
	sp := cmp.Or(cur.ServicePort, old.ServicePort)
	i := slices.IndexFunc(d.tables, func(t *table) bool { return sp != nil && t.family == sp.Key.Family })
	if i < 0 {
		return nil
	}
	return d.tables[i].diffRow(old, cur, out, d.syncing)
}

// list calls have for every object in our tables, and for kube-proxy's tables. It
// implements [differ.Mode.List].
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
		case !t.repairable(l):
			empty, d.replaced = false, append(d.replaced, t)
			have(id{kind: kindTable, t: t}, value{data: "not repairable"})
		default:
			empty = false
			elements := func() error { return d.listElements(ctx, t, l, want, have) }
			if t.recovered {
				// List elements as late as possible: while the kernel still grows the hash
				// table of a set, it leaves elements out.
				later = append(later, elements)
			} else if err := elements(); err != nil {
				return nil, false, err
			}
			have(id{kind: kindTable, t: t}, value{})
			for name, rules := range l.Chains {
				have(id{kind: kindChain, t: t, key: name}, value{chain: &chain{Chain: nft.Chain{Name: name}, asListed: rules}})
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
			have(id{kind: kindKubeProxyTable, t: t}, value{})
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

// listElements calls have for every set in the listing and for its elements. Elements of
// dynamic sets are not ours to compare: rules add them.
func (d *Dataplane) listElements(ctx context.Context, t *table, l *nft.Listing, want *proxy.State, have func(id, value)) error {
	former := t.newRecovery(want)
	for _, s := range t.recoveryOrder() {
		if _, ok := l.Sets[s.Name]; !ok {
			continue
		}
		have(id{kind: kindSet, t: t, set: s}, value{})
		if s.Dynamic {
			continue
		}
		err := d.conn.Elements(ctx, s, func(e nft.Element) {
			former.element(s, e)
			have(t.elementObject(s, e))
		})
		if err != nil {
			return err
		}
	}
	former.finish()
	for name := range l.Sets {
		if !slices.ContainsFunc(t.sets(), func(s *nft.Set) bool { return s.Name == name }) {
			have(id{kind: kindSet, t: t, set: &nft.Set{Table: t.Table, Name: name}}, value{}) // from another version, to be deleted
		}
	}
	return nil
}

// repairable reports whether a table can be repaired in place: its base chains have the
// right hooks, its sets the right types, no chain that rules jump to is a base chain, and
// the table is not dormant.
func (t *table) repairable(l *nft.Listing) bool {
	for _, c := range t.baseChains() {
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
		if t.isJumpTarget(name) {
			return false
		}
	}
	return !l.Dormant
}

// isJumpTarget reports whether our rules may jump to a chain of this name, so that it
// must not be a base chain.
func (t *table) isJumpTarget(name string) bool {
	prefix := func(p string) bool { return strings.HasPrefix(name, p) }
	if slices.ContainsFunc([]string{"lb-", "np-", "masq-", takenPrefix, rememberPrefix, clientsPrefix}, prefix) {
		return true
	}
	return slices.ContainsFunc(t.constantChains(&proxy.Node{}, nil, localnet.Guard{}), func(c *chain) bool {
		return c.Name == name && c.Hook == nil
	})
}

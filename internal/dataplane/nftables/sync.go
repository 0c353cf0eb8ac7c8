package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// batchBytes bounds the batches of a Sync. It fits the kernel's default socket
// buffer, for those who may not ask for a larger one.
const batchBytes = 256 << 10

// Sync makes the kernel right whatever was there before. A table that is not
// there is written row by row and made live by its last batch, in which
// kube-proxy's tables go. A table that is there is listed, and only what
// differs is written. What clients are remembered for stays.
func (d *Dataplane) Sync(ctx context.Context, s *proxy.State) (proxy.Refused, error) {
	refused := proxy.Refused{}
	for {
		users := classUsers{}
		err := d.sync(ctx, s, refused, users)
		if err == nil {
			break
		}
		missing := func(err error) bool { return errors.Is(err, unix.ENOENT) }
		if !users.blame(err, refused, missing) {
			return nil, err
		}
	}
	d.rows = maps.Clone(s.Rows)
	maps.DeleteFunc(d.rows, func(k proxy.PortKey, _ *proxy.ServicePort) bool { return refused[k] != nil })
	d.localnet.Open(ctx)
	return refused, nil
}

func (d *Dataplane) sync(ctx context.Context, s *proxy.State, refused map[proxy.PortKey]error, users classUsers) error {
	d.node = nil // until the end, Apply has nothing to stand on
	live := &nft.Batch{}
	var writers []*writer
	for _, t := range d.tables {
		listing, err := d.conn.List(ctx, t.Table)
		if err != nil {
			return err
		}
		w := &writer{ctx: ctx, conn: d.conn, limit: d.batchBytes, t: t, users: users, refused: refused}
		if t.family == proxy.IPv4 {
			d.localnet.Find(ctx, traces(listing))
			d.guard = d.localnet.Guard(ctx, s.Node.OpensLoopback())
			w.guard = d.guard
		}
		rows := rowsOf(s, t.family, refused)
		t.forgetUses()
		switch {
		case listing == nil:
			w.fresh(s, rows)
		case !t.fits(listing):
			w.remake(s, rows)
		case onlyGuard(listing):
			w.fresh(s, rows)
			w.gone = append(w.gone, guardChain)
		default:
			w.mend(s, rows, listing)
		}
		if w.flush(); w.err != nil {
			return w.err
		}
		live.Ops = append(live.Ops, w.live.Ops...)
		writers = append(writers, w)
	}
	if err := d.takeOver(ctx, live); err != nil {
		return err
	}
	if err := d.conn.Commit(ctx, live); err != nil {
		return fmt.Errorf("make the rules live: %w", err)
	}
	for _, w := range writers {
		if w.sweep(); w.err != nil {
			return w.err
		}
		w.t.synced()
	}
	d.node, d.cidrs = s.Node, s.CIDRs
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
		if _, ok := l.Sets[s.Name]; ok && l.Types[s.Name] != s.Shape() {
			return false
		}
	}
	return !l.Dormant
}

// forgetUses begins to count anew what rows lead to and share.
func (t *table) forgetUses() {
	t.classes.uses, t.classes.unused, t.classes.written = map[class]int{}, map[class]time.Time{}, map[class]bool{}
	t.shares = map[itemID]int{}
}

// synced remembers what the kernel has now.
func (t *table) synced() {
	for c := range t.classes.numbers {
		if t.classes.uses[c] == 0 {
			t.classes.forget(c)
		}
	}
	for c := range t.classes.uses {
		t.classes.written[c] = true
	}
	t.recovered = true // from here on memory is right
}

// takeOver adds the removal of kube-proxy's tables to the batch that makes ours live.
func (d *Dataplane) takeOver(ctx context.Context, live *nft.Batch) error {
	for _, t := range d.tables {
		theirs := nft.Table{Family: t.Table.Family, Name: kubeProxyTable}
		listing, err := d.conn.List(ctx, theirs)
		if err != nil {
			return err
		}
		if listing != nil {
			live.DeleteTable(theirs)
		}
	}
	return nil
}

func rowsOf(s *proxy.State, f proxy.Family, refused map[proxy.PortKey]error) []*proxy.ServicePort {
	rows := make([]*proxy.ServicePort, 0, len(s.Rows))
	for key, sp := range s.Rows {
		if key.Family == f && refused[key] == nil {
			rows = append(rows, sp)
		}
	}
	return rows
}

// writer writes one table in bounded batches and keeps the first error.
type writer struct {
	ctx     context.Context
	conn    nft.Interface
	limit   int // of a batch, in bytes
	t       *table
	users   classUsers
	refused map[proxy.PortKey]error
	guard   localnet.Guard

	b    nft.Batch
	live nft.Batch // what comes last: the base chains
	gone []string  // chains to be deleted when all is live
	err  error
}

// flush commits what has been collected.
func (w *writer) flush() {
	if w.err != nil {
		return
	}
	if w.err = w.conn.Commit(w.ctx, &w.b); w.err != nil {
		w.b = nft.Batch{} // the error refers to the operations
		return
	}
	w.b.Reset()
}

// flushIfLarge commits when a batch is large enough.
func (w *writer) flushIfLarge() {
	if w.b.Bytes() > w.limit {
		w.flush()
	}
}

// row gives a row to an output, unless it cannot be written.
func (w *writer) row(sp *proxy.ServicePort, out output) {
	if err := w.t.change(nil, sp, out); err != nil {
		w.refused[sp.Key] = err
	}
}

// needs notes that a row needs a class.
func (w *writer) needs(key proxy.PortKey, c class) classOwner {
	owner := classOwner{w.t, c}
	w.users[owner] = append(w.users[owner], key)
	return owner
}

// sweep deletes the chains that nothing leads to any more, one by one: one that
// cannot go yet is left, empty, for the next Sync.
func (w *writer) sweep() {
	slices.Sort(w.gone)
	for _, name := range w.gone {
		w.b.FlushChain(w.t.Table, name)
	}
	w.flush()
	for _, name := range w.gone {
		w.t.deleteChain(w.ctx, w.conn, name)
	}
}

package nftables

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// fresh writes a table that is not there. Since nothing leads to it before the
// last batch, rows are written as they come.
func (w *writer) fresh(s *proxy.State, rows []*proxy.ServicePort) {
	w.writeAll(s, rows, w.flushIfLarge)
}

// remake writes a table in the place of one that cannot be mended, all at once:
// there is no moment without rules. Where the system does not let us send that
// much in one batch, the old table goes first.
func (w *writer) remake(s *proxy.State, rows []*proxy.ServicePort) {
	w.b.DeleteTable(w.t.Table)
	w.writeAll(s, rows, func() {})
	ops := append(slices.Clone(w.b.Ops), w.live.Ops...)
	w.live = nft.Batch{}
	w.b.Reset()
	w.b.Ops = ops
	if w.flush(); !errors.Is(w.err, unix.EMSGSIZE) && !errors.Is(w.err, unix.ENOBUFS) {
		return
	}
	w.err = nil
	w.t.forgetUses()
	w.b = nft.Batch{}
	w.b.DeleteTable(w.t.Table)
	if w.guard.InForce { // loopback may be open
		w.t.addGuard(&w.b, w.guard)
		w.gone = append(w.gone, guardChain)
	}
	if w.flush(); w.err != nil {
		w.err = fmt.Errorf("delete a table that is not as ours: %w", w.err)
		return
	}
	w.fresh(s, rows)
}

// writeAll collects all that is in a table.
func (w *writer) writeAll(s *proxy.State, rows []*proxy.ServicePort, full func()) {
	w.t.blocks.keep(rows)
	w.b.AddTable(w.t.Table)
	for _, set := range w.t.sets() {
		w.b.AddSet(set)
	}
	inner, base := w.t.constant(s.Node, s.CIDRs, w.guard)
	addChains(&w.b, w.t, inner...)
	addChains(&w.live, w.t, base...)
	stream := &streamer{w: w}
	for _, sp := range rows {
		stream.key = sp.Key
		w.row(sp, stream)
		stream.end()
		if full(); w.err != nil {
			return
		}
	}
	w.b.Owner = nil
}

// streamer writes what a row renders to straight into the batch.
type streamer struct {
	w     *writer
	key   proxy.PortKey
	items []item
}

func (s *streamer) add(set *nft.Set, e nft.Element) {
	x := item{set, e}
	if t := s.w.t; t.shared(set) {
		if t.shares[x.id()]++; t.shares[x.id()] > 1 {
			return
		}
	}
	s.items = append(s.items, x)
}

func (s *streamer) use(c class, by int) {
	owner := s.w.needs(s.key, c)
	if !s.w.t.classes.written[c] {
		s.w.b.Owner = owner
		addClass(&s.w.b, s.w.t, c)
		s.w.t.classes.written[c] = true // or the Sync fails
	}
	s.w.t.classes.use(c, by)
}

// A row that is written whole removes nothing.
func (s *streamer) remove(*nft.Set, nft.Element)             {}
func (s *streamer) drop(*block, proxy.Scope, netip.AddrPort) {}
func (s *streamer) release(blockKey)                         {}

// end writes the row. Elements of one set follow each other, so that they share
// a message.
func (s *streamer) end() {
	s.w.b.Owner = s.key
	slices.SortStableFunc(s.items, func(a, b item) int { return cmp.Compare(a.set.Name, b.set.Name) })
	for _, x := range s.items {
		s.w.b.AddElement(x.set, x.Element)
	}
	clear(s.items)
	s.items = s.items[:0]
}

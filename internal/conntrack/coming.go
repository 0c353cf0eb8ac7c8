package conntrack

import "sluice/internal/proxy"

// coming is what a write makes of the rows.
type coming struct {
	owners map[frontend]owner // where they change; without a row: nobody
	node   *proxy.Node
	unsure bool // an earlier write failed, and the kernel may do part of that
}

// expect notes a step that is about to be written; nil says that nothing of the
// last one was.
func (w *watch) expect(d *proxy.Delta) {
	if d == nil {
		w.coming = nil
		return
	}
	next := &coming{node: w.node, unsure: w.coming != nil}
	w.coming = next
	if len(w.until) == 0 && w.all.IsZero() {
		return // No flow is judged before the end of the write.
	}
	next.owners = map[frontend]owner{}
	if d.Node != nil {
		next.node = d.Node
	}
	s := stepOf(&proxy.State{}, d)
	for _, r := range s.removes {
		next.change(r, owner{})
	}
	for _, u := range s.upserts {
		if u.Old != nil {
			next.change(u.Old, owner{})
		}
	}
	for _, u := range s.upserts {
		next.change(u.New, owner{row: u.New})
	}
}

// change gives all frontends of a row to an owner.
func (c *coming) change(sp *proxy.ServicePort, to owner) {
	for _, f := range sp.Frontends {
		to.kind = f.Kind
		c.owners[frontend{f.Addr, sp.Key.Protocol}] = to
	}
}

// owner returns whose a frontend is.
func (w *watch) owner(f frontend) (owner, bool) {
	o, ok := w.owners[f]
	return o, ok
}

// ownerThen returns whose it is after the write that is under way.
func (w *watch) ownerThen(f frontend) (owner, bool) {
	if o, changes := w.coming.owners[f]; changes {
		return o, o.row != nil
	}
	return w.owner(f)
}

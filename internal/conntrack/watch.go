package conntrack

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// frontend is an address and port that clients send to. A NodePort has the unspecified address of
// its family.
type frontend struct {
	addr     netip.AddrPort
	protocol proxy.Protocol
}

// filter returns the filter that selects the flows of the frontend's family and protocol.
func (f frontend) filter() ct.Filter {
	return ct.Filter{IPv6: proxy.FamilyOf(f.addr.Addr()) == proxy.IPv6, Protocol: uint8(f.protocol)}
}

// owner is the row that a frontend belongs to; row is nil if it belongs to none.
type owner struct {
	row  *proxy.ServicePort
	kind proxy.Kind
}

// changes returns the changed rows of a step whose protocol has its stale flows ended. New is nil
// for a removed row.
func changes(d *proxy.Delta) []proxy.Upsert {
	all := slices.Clone(d.Upserts)
	for _, r := range d.Removes {
		all = append(all, proxy.Upsert{Old: r})
	}
	return slices.DeleteFunc(all, func(u proxy.Upsert) bool { return !cmp.Or(u.New, u.Old).Key.Protocol.EndsStaleFlows() })
}

// watch records which row owns each frontend, and which frontends are to be checked. It follows
// what was written, not the wanted state: a row that the kernel refuses must not end flows of the
// rules that are in force.
type watch struct {
	owners          map[frontend]owner
	until           map[frontend]time.Time  // watched frontends, and when their last check is due
	allUntil        time.Time               // if not zero, all frontends that have an owner are watched until then
	recentlyEnded   map[direction]time.Time // untranslated flows that were ended, and when the last check for a late reply is due
	departures      map[departure]bool      // of watched NodePorts
	node            *proxy.Node
	formerNodePorts []netip.Prefix // prefixes that accepted NodePorts when a watched frontend was written
	pending         *pendingWrite  // the write in progress, or nil
	extended        bool           // there is something new to check
	dropped         int            // frontends without an owner that are no longer watched, for lack of room
}

// departure is an endpoint that was removed from a NodePort.
type departure struct {
	frontend
	endpoint netip.AddrPort
}

// pendingWrite is a write that was announced and is not known to have succeeded.
type pendingWrite struct {
	owners map[frontend]owner // the frontends that it changes, with their new owners
	node   *proxy.Node
	failed map[frontend]bool // frontends of earlier writes that failed, perhaps after the kernel took a part; nil if none failed
}

// Bounds of each of the lists of a watch, should flows be unreadable for long.
const (
	maxWatched         = 1 << 16
	maxFormerNodePorts = 1 << 10
)

func newWatch() watch {
	return watch{
		owners:        map[frontend]owner{},
		until:         map[frontend]time.Time{},
		recentlyEnded: map[direction]time.Time{},
		departures:    map[departure]bool{},
		node:          &proxy.Node{},
	}
}

// applying records a step that is about to be written.
func (w *watch) applying(d *proxy.Delta) {
	next := &pendingWrite{owners: map[frontend]owner{}, node: cmp.Or(d.Node, w.node), failed: w.failed()}
	w.pending = next
	rows := changes(d)
	for _, u := range rows {
		eachFrontend(u.Old, func(f frontend, _ proxy.Kind) { next.owners[f] = owner{} })
	}
	for _, u := range rows {
		eachFrontend(u.New, func(f frontend, k proxy.Kind) { next.owners[f] = owner{u.New, k} })
	}
}

// failed returns the frontends of writes that were announced and did not succeed, as far as there
// is room; nil if there was no such write.
func (w *watch) failed() map[frontend]bool {
	if w.pending == nil {
		return nil
	}
	all := w.pending.failed
	if all == nil {
		all = map[frontend]bool{}
	}
	for f := range w.pending.owners {
		if len(all) < maxWatched {
			all[f] = true
		} else if !all[f] {
			w.dropped++
		}
	}
	return all
}

// owner returns the owner of a frontend after a pending write; nil means the owner in force.
func (w *watch) owner(f frontend, p *pendingWrite) owner {
	if p != nil {
		if o, changed := p.owners[f]; changed {
			return o
		}
	}
	return w.owners[f]
}

// eachFrontend calls do for every frontend of a row; a nil row has none.
func eachFrontend(sp *proxy.ServicePort, do func(frontend, proxy.Kind)) {
	if sp == nil {
		return
	}
	for _, f := range sp.Frontends {
		do(frontend{f.Addr, sp.Key.Protocol}, f.Kind)
	}
}

// applied records a step that was written. After a full sync everything is checked: another process
// may have removed our rules, and flows may have begun without them.
func (w *watch) applied(node *proxy.Node, d *proxy.Delta, full bool, now time.Time) {
	w.setNode(node, now)
	rows := changes(d)
	// A frontend may move from one row to another in one step.
	for _, u := range rows {
		eachFrontend(u.Old, func(f frontend, _ proxy.Kind) {
			if o := w.owners[f]; o.row != nil && o.row.Key == u.Old.Key {
				delete(w.owners, f)
			}
		})
	}
	for _, u := range rows {
		eachFrontend(u.New, func(f frontend, k proxy.Kind) { w.owners[f] = owner{u.New, k} })
		if mayMakeStale(u) {
			watch := func(f frontend, _ proxy.Kind) { w.watchUntil(f, now.Add(watchTime)) }
			eachFrontend(u.Old, watch)
			eachFrontend(u.New, watch)
			w.noteDepartures(u)
		}
	}
	w.endPending(now)
	if full && len(w.owners) > 0 {
		w.watchAll(now)
	}
}

// endPending ends the pending write. If earlier writes failed, everything is watched, including the
// frontends that they would have created, which may have no owner.
func (w *watch) endPending(now time.Time) {
	if w.pending != nil && w.pending.failed != nil {
		w.watchAll(now.Add(watchTime))
		for f := range w.pending.failed {
			w.watchUntil(f, now.Add(watchTime))
		}
	}
	w.pending = nil
}

// noteDepartures records the endpoints that were removed from the NodePorts of a row, as far as
// there is room: all its endpoints, if the row no longer has the NodePort.
func (w *watch) noteDepartures(u proxy.Upsert) {
	eachFrontend(u.Old, func(f frontend, k proxy.Kind) {
		if k != proxy.NodePort {
			return
		}
		change := u
		if u.New != nil && !slices.Contains(u.New.Frontends, proxy.Frontend{Kind: k, Addr: f.addr}) {
			change.New = nil
		}
		for a := range removedEndpoints(change) {
			if len(w.departures) < maxWatched {
				w.departures[departure{f, a}] = true
			}
		}
	})
}

// setNode records the node, and watches all NodePorts if the addresses that accept them have
// changed.
func (w *watch) setNode(n *proxy.Node, now time.Time) {
	was := w.node.NodePorts
	w.node = n
	if slices.Equal(was, n.NodePorts) {
		return
	}
	for _, p := range was {
		if !slices.Contains(w.formerNodePorts, p) {
			w.formerNodePorts = append(w.formerNodePorts, p)
		}
	}
	w.formerNodePorts = w.formerNodePorts[max(0, len(w.formerNodePorts)-maxFormerNodePorts):]
	for f, o := range w.owners {
		if o.kind == proxy.NodePort {
			w.watchUntil(f, now.Add(watchTime))
		}
	}
}

// watchUntil watches a frontend until a time. If there are too many, all frontends with an owner
// are watched together instead. Frontends without an owner have to be listed one by one, because
// nothing else distinguishes their flows from those of another program.
func (w *watch) watchUntil(f frontend, to time.Time) {
	w.extended = true
	if to.After(w.until[f]) {
		w.until[f] = to
	}
	if len(w.until) <= maxWatched {
		return
	}
	w.watchAll(to)
	maps.DeleteFunc(w.until, func(f frontend, _ time.Time) bool { return w.owners[f].row != nil })
	if len(w.until) > maxWatched/2 {
		w.dropped += len(w.until)
		w.until = map[frontend]time.Time{}
	}
}

// watchAll watches every frontend that has an owner until a time.
func (w *watch) watchAll(to time.Time) {
	w.extended = true
	if to.After(w.allUntil) {
		w.allUntil = to
	}
}

func (w *watch) watches(f frontend) bool {
	return !w.until[f].IsZero() || !w.allUntil.IsZero() && w.owners[f].row != nil
}

// filters returns the filters that select the flows to check.
func (w *watch) filters() map[ct.Filter]bool {
	filters := map[ct.Filter]bool{}
	for f := range w.until {
		filters[f.filter()] = true
	}
	for d := range w.recentlyEnded {
		filters[d.filter()] = true
	}
	if !w.allUntil.IsZero() {
		for f := range w.owners {
			filters[f.filter()] = true
		}
	}
	return filters
}

// direction is one direction of an untranslated flow.
type direction struct {
	protocol uint8
	ct.Tuple
}

// filter returns the filter that selects flows in this direction and in the opposite one.
func (d direction) filter() ct.Filter {
	return ct.Filter{IPv6: d.Dst.Addr().Is6(), Protocol: d.protocol}
}

// flowEnded records that a flow was ended. If the flow was not translated, its server's reply to
// the last packet may still be on its way. The kernel would take that for the start of a new flow,
// and the client's next packets, which ought to be translated, for replies in it. So such a flow is
// ended too.
func (w *watch) flowEnded(f *ct.Flow) {
	if !translated(f) && !w.isLateReply(f) && len(w.recentlyEnded) < maxWatched {
		w.recentlyEnded[direction{f.Protocol, f.Orig}] = time.Now().Add(watchTime)
	}
}

// isLateReply reports whether a flow began with such a reply. Entries outlive their time while
// checks fail, but a flow that is found much later was begun by the server itself.
func (w *watch) isLateReply(f *ct.Flow) bool {
	due, ok := w.recentlyEnded[direction{f.Protocol, ct.Tuple{Src: f.Orig.Dst, Dst: f.Orig.Src}}]
	return ok && !translated(f) && time.Since(due) <= retryMax
}

// nextCheck returns the earliest due time after a given one, of a watched frontend or of an ended
// flow; zero if there is none.
func (w *watch) nextCheck(after time.Time) (at time.Time) {
	earliest := func(t time.Time) {
		if t.After(after) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	earliest(w.allUntil)
	for _, t := range w.until {
		earliest(t)
	}
	for _, t := range w.recentlyEnded {
		earliest(t)
	}
	return at
}

// checked records that a check of all watched frontends, which began at a time, has succeeded.
func (w *watch) checked(at time.Time) {
	maps.DeleteFunc(w.until, func(_ frontend, t time.Time) bool { return !t.After(at) })
	maps.DeleteFunc(w.recentlyEnded, func(_ direction, t time.Time) bool { return !t.After(at) })
	if !w.allUntil.After(at) {
		w.allUntil = time.Time{}
	}
	maps.DeleteFunc(w.departures, func(d departure, _ bool) bool { return !w.watches(d.frontend) })
	if len(w.until) == 0 && w.allUntil.IsZero() {
		w.formerNodePorts = nil
	}
}

// mayMakeStale reports whether a changed row can make a flow stale. It cannot if endpoints were only
// added to others.
func mayMakeStale(u proxy.Upsert) bool {
	old, cur := u.Old, u.New
	if old == nil || cur == nil || !slices.Equal(old.Frontends, cur.Frontends) {
		return true
	}
	if old.Internal != cur.Internal || old.External != cur.External {
		return true // Flows that were not translated may have to be now.
	}
	if len(old.Cluster)+len(old.Local) == 0 && len(cur.Cluster)+len(cur.Local) > 0 {
		return true
	}
	return len(removedEndpoints(u)) > 0
}

// removedEndpoints returns the endpoints that could have flows before a change of a row and cannot
// after it.
func removedEndpoints(u proxy.Upsert) map[netip.AddrPort]bool {
	cur := cmp.Or(u.New, &proxy.ServicePort{})
	out := movedEndpoints(u.Old, cur)
	for _, list := range [][]proxy.Endpoint{cur.Cluster, cur.Local} {
		for i := 0; i < len(list) && len(out) > 0; i++ {
			delete(out, list[i].Addr)
		}
	}
	for _, a := range cur.Draining {
		delete(out, a)
	}
	return out
}

// movedEndpoints returns the endpoints of the old row that could have flows and are not in the same
// slot of the new one. They are few, because an endpoint keeps its slot.
func movedEndpoints(old, cur *proxy.ServicePort) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for _, scope := range []proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal} {
		list := cur.List(scope)
		for i, e := range old.List(scope) {
			if i >= len(list) || list[i].Addr != e.Addr {
				out[e.Addr] = true
			}
		}
	}
	if !slices.Equal(old.Draining, cur.Draining) {
		for _, a := range old.Draining {
			out[a] = true
		}
	}
	return out
}

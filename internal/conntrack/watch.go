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

// frontend is where a client sends to. A NodePort has the unspecified address
// of its family.
type frontend struct {
	addr     netip.AddrPort
	protocol proxy.Protocol
}

// filter selects the flows of all frontends of its family and protocol.
func (f frontend) filter() ct.Filter {
	return ct.Filter{IPv6: proxy.FamilyOf(f.addr.Addr()) == proxy.IPv6, Protocol: uint8(f.protocol)}
}

// owner is the row that a frontend belongs to; nil: it is nobody's.
type owner struct {
	row  *proxy.ServicePort
	kind proxy.Kind
}

// changes returns the rows of a step whose stale flows we end. New is nil for
// one that goes.
func changes(d *proxy.Delta) []proxy.Upsert {
	all := slices.Clone(d.Upserts)
	for _, r := range d.Removes {
		all = append(all, proxy.Upsert{Old: r})
	}
	return slices.DeleteFunc(all, func(u proxy.Upsert) bool { return !cmp.Or(u.New, u.Old).Key.Protocol.EndsStaleFlows() })
}

// watch knows whose every frontend is, and which of them are to be checked.
// It follows the steps, not the wanted state: a row that the kernel refuses
// must not end flows of the rules that are there.
type watch struct {
	owners    map[frontend]owner
	until     map[frontend]time.Time  // the watched ones: when their last check is due
	all       time.Time               // the same for every frontend that has an owner; zero: they are not watched
	lately    map[direction]time.Time // untranslated flows that were ended, as long
	left      map[departure]bool      // of watched NodePorts
	node      *proxy.Node
	former    []netip.Prefix // that took NodePorts when some watched frontend was written
	writing   *writing       // the write that is under way; nil: none is
	more      bool           // there is more to check than there was
	forgotten int            // frontends without an owner that were watched, and are not any more for want of room
}

// departure is an endpoint that has left a NodePort.
type departure struct {
	frontend
	endpoint netip.AddrPort
}

// writing is what a write makes of the rows.
type writing struct {
	owners map[frontend]owner // where they change
	node   *proxy.Node
	failed map[frontend]bool // that earlier writes changed and failed, of which the kernel may do part; nil: none did
}

// maxWatched bounds what is kept in each list while flows cannot be read.
const (
	maxWatched = 1 << 16
	maxFormer  = 1 << 10
)

func newWatch() watch {
	return watch{
		owners: map[frontend]owner{},
		until:  map[frontend]time.Time{},
		lately: map[direction]time.Time{},
		left:   map[departure]bool{},
		node:   &proxy.Node{},
	}
}

// expect notes a step that is about to be written.
func (w *watch) expect(d *proxy.Delta) {
	next := &writing{owners: map[frontend]owner{}, node: cmp.Or(d.Node, w.node), failed: w.failed()}
	w.writing = next
	rows := changes(d)
	for _, u := range rows {
		eachFrontend(u.Old, func(f frontend, _ proxy.Kind) { next.owners[f] = owner{} })
	}
	for _, u := range rows {
		eachFrontend(u.New, func(f frontend, k proxy.Kind) { next.owners[f] = owner{u.New, k} })
	}
}

// failed returns the frontends of writes that were announced and not said to have ended
// well, as far as there is room; nil if there was no such write.
func (w *watch) failed() map[frontend]bool {
	if w.writing == nil {
		return nil
	}
	all := w.writing.failed
	if all == nil {
		all = map[frontend]bool{}
	}
	for f := range w.writing.owners {
		if len(all) < maxWatched {
			all[f] = true
		} else if !all[f] {
			w.forgotten++
		}
	}
	return all
}

// owner returns whose a frontend is, or whose a write makes it.
func (w *watch) owner(f frontend, by *writing) owner {
	if by != nil {
		if o, changes := by.owners[f]; changes {
			return o
		}
	}
	return w.owners[f]
}

// eachFrontend calls do for all frontends of a row, which may be nil.
func eachFrontend(sp *proxy.ServicePort, do func(frontend, proxy.Kind)) {
	if sp == nil {
		return
	}
	for _, f := range sp.Frontends {
		do(frontend{f.Addr, sp.Key.Protocol}, f.Kind)
	}
}

// learn takes a step that was written. After a full sync everything is checked:
// another process may have taken our rules away, and flows begun without them.
func (w *watch) learn(node *proxy.Node, d *proxy.Delta, full bool, now time.Time) {
	w.learnNode(node, now)
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
		if matters(u) {
			until := func(f frontend, _ proxy.Kind) { w.extend(f, now.Add(watchTime)) }
			eachFrontend(u.Old, until)
			eachFrontend(u.New, until)
			w.depart(u)
		}
	}
	w.learnFailed(now)
	if full && len(w.owners) > 0 {
		w.watchAll(now)
	}
}

// learnFailed watches everything if earlier writes failed, and what they would have made
// a frontend too: it may have an owner no more, or never have had one.
func (w *watch) learnFailed(now time.Time) {
	if w.writing != nil && w.writing.failed != nil {
		w.watchAll(now.Add(watchTime))
		for f := range w.writing.failed {
			w.extend(f, now.Add(watchTime))
		}
	}
	w.writing = nil
}

// depart notes which endpoints have left the NodePorts of a row, as far as there is
// room: all of them, if the NodePort is the row's no more.
func (w *watch) depart(u proxy.Upsert) {
	eachFrontend(u.Old, func(f frontend, k proxy.Kind) {
		if k != proxy.NodePort {
			return
		}
		left := u
		if u.New != nil && !slices.Contains(u.New.Frontends, proxy.Frontend{Kind: k, Addr: f.addr}) {
			left.New = nil
		}
		for a := range departed(left) {
			if len(w.left) < maxWatched {
				w.left[departure{f, a}] = true
			}
		}
	})
}

// learnNode watches all NodePorts when other addresses take them.
func (w *watch) learnNode(n *proxy.Node, now time.Time) {
	was := w.node.NodePorts
	w.node = n
	if slices.Equal(was, n.NodePorts) {
		return
	}
	for _, p := range was {
		if !slices.Contains(w.former, p) {
			w.former = append(w.former, p)
		}
	}
	w.former = w.former[max(0, len(w.former)-maxFormer):]
	for f, o := range w.owners {
		if o.kind == proxy.NodePort {
			w.extend(f, now.Add(watchTime))
		}
	}
}

// extend watches a frontend until a time. When there is no more room, all that
// have an owner are watched together; those that have none must be known one by
// one, since only that tells their flows from another program's.
func (w *watch) extend(f frontend, to time.Time) {
	w.more = true
	if to.After(w.until[f]) {
		w.until[f] = to
	}
	if len(w.until) <= maxWatched {
		return
	}
	w.watchAll(to)
	maps.DeleteFunc(w.until, func(f frontend, _ time.Time) bool { return w.owners[f].row != nil })
	if len(w.until) > maxWatched/2 {
		w.forgotten += len(w.until)
		w.until = map[frontend]time.Time{}
	}
}

// watchAll watches every frontend that has an owner until a time.
func (w *watch) watchAll(to time.Time) {
	w.more = true
	if to.After(w.all) {
		w.all = to
	}
}

func (w *watch) watches(f frontend) bool {
	return !w.until[f].IsZero() || !w.all.IsZero() && w.owners[f].row != nil
}

// filters returns which flows to check.
func (w *watch) filters() map[ct.Filter]bool {
	filters := map[ct.Filter]bool{}
	for f := range w.until {
		filters[f.filter()] = true
	}
	for d := range w.lately {
		filters[d.filter()] = true
	}
	if !w.all.IsZero() {
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

// filter selects the flows that go either way.
func (d direction) filter() ct.Filter {
	return ct.Filter{IPv6: d.Dst.Addr().Is6(), Protocol: d.protocol}
}

// ended notes that a flow was ended. If nothing translated it, its server's
// answer to the last packet may be under way, and then the kernel takes that
// for the beginning of a flow and the client's next packets for answers in it.
// What the client sends after that is translated, so it ends there.
func (w *watch) ended(f *ct.Flow) {
	if !translated(f) && !w.answersEnded(f) && len(w.lately) < maxWatched {
		w.lately[direction{f.Protocol, f.Orig}] = time.Now().Add(watchTime)
	}
}

// answersEnded reports whether a flow began with such an answer. While checks fail,
// what is due is kept, but a flow that is there much later is the server's own.
func (w *watch) answersEnded(f *ct.Flow) bool {
	due, ok := w.lately[direction{f.Protocol, ct.Tuple{Src: f.Orig.Dst, Dst: f.Orig.Src}}]
	return ok && !translated(f) && time.Since(due) <= retryMax
}

// due returns when the next last check is needed, of those that are after a time: of a
// watched frontend, or for the answer to a flow that was ended; zero: none is.
func (w *watch) due(after time.Time) (at time.Time) {
	earliest := func(t time.Time) {
		if t.After(after) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	earliest(w.all)
	for _, t := range w.until {
		earliest(t)
	}
	for _, t := range w.lately {
		earliest(t)
	}
	return at
}

// checked notes a check of all watched frontends that began at a time.
func (w *watch) checked(at time.Time) {
	maps.DeleteFunc(w.until, func(_ frontend, t time.Time) bool { return !t.After(at) })
	maps.DeleteFunc(w.lately, func(_ direction, t time.Time) bool { return !t.After(at) })
	if !w.all.After(at) {
		w.all = time.Time{}
	}
	maps.DeleteFunc(w.left, func(d departure, _ bool) bool { return !w.watches(d.frontend) })
	if len(w.until) == 0 && w.all.IsZero() {
		w.former = nil
	}
}

// matters reports whether a changed row can make a flow stale: not if there are
// only more endpoints to go to.
func matters(u proxy.Upsert) bool {
	old, cur := u.Old, u.New
	if old == nil || cur == nil || !slices.Equal(old.Frontends, cur.Frontends) {
		return true
	}
	if old.Internal != cur.Internal || old.External != cur.External {
		return true // Flows that nothing translated may be translated now.
	}
	if len(old.Cluster)+len(old.Local) == 0 && len(cur.Cluster)+len(cur.Local) > 0 {
		return true
	}
	return len(departed(u)) > 0
}

// departed returns the endpoints of a row that may have flows, and may not after a
// change of it.
func departed(u proxy.Upsert) map[netip.AddrPort]bool {
	cur := cmp.Or(u.New, &proxy.ServicePort{})
	out := leaving(u.Old, cur)
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

// leaving returns the endpoints of a row that may have flows and are not where they
// were in another form of it. Few are: an endpoint keeps its slot.
func leaving(old, cur *proxy.ServicePort) map[netip.AddrPort]bool {
	out := map[netip.AddrPort]bool{}
	for _, scope := range []proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal} {
		is := cur.List(scope)
		for i, e := range old.List(scope) {
			if i >= len(is) || is[i].Addr != e.Addr {
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

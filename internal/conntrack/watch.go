package conntrack

import (
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

// owner is the row that a frontend belongs to.
type owner struct {
	row  *proxy.ServicePort
	kind proxy.Kind
}

// step is what one sync changed, as far as it matters here.
type step struct {
	upserts []proxy.Upsert
	removes []*proxy.ServicePort
	node    *proxy.Node
	anew    bool // everything was written anew, though nothing has changed
}

// stepOf keeps the rows whose flows are cut. A sync without a change is a full
// one: somebody may have taken our rules away, and flows have begun without them.
func stepOf(s *proxy.State, d *proxy.Delta) step {
	st := step{node: s.Node, anew: d.Empty()}
	for _, u := range d.Upserts {
		if u.New.Key.Protocol.EndsStaleFlows() {
			st.upserts = append(st.upserts, u)
		}
	}
	for _, r := range d.Removes {
		if r.Key.Protocol.EndsStaleFlows() {
			st.removes = append(st.removes, r)
		}
	}
	return st
}

// watch knows whose every frontend is, and which of them are to be looked at.
// It follows the steps, not the wanted state: a row that the kernel refuses
// must not end flows of the rules that are there.
type watch struct {
	owners    map[frontend]owner
	until     map[frontend]time.Time // the watched ones: when their last look is due
	all       time.Time              // the same for every frontend that has an owner; zero: they are not watched
	cuts      map[way]time.Time      // untranslated flows that were ended, as long
	node      *proxy.Node
	former    []netip.Prefix // that took NodePorts when some watched frontend was written
	coming    *coming        // by the write that is under way; nil: none is
	forgotten int            // frontends without an owner that were watched, and are not any more for want of room
}

// maxWatched bounds what is kept in each list while flows cannot be looked at.
const (
	maxWatched = 1 << 16
	maxFormer  = 1 << 10
)

func newWatch() watch {
	return watch{
		owners: map[frontend]owner{},
		until:  map[frontend]time.Time{},
		cuts:   map[way]time.Time{},
		node:   &proxy.Node{},
	}
}

// learn takes a step that was written, and reports whether it concerns any flow.
func (w *watch) learn(s step, now time.Time) bool {
	news := w.learnNode(s.node, now)
	if w.coming != nil && w.coming.unsure {
		w.watchAll(now.Add(watchTime))
		news = true
	}
	w.coming = nil
	for _, r := range s.removes {
		w.leave(r)
		w.concern(r, now)
		news = true
	}
	// A frontend may move from one row to another in one step.
	for _, u := range s.upserts {
		w.leave(u.Old)
	}
	for _, u := range s.upserts {
		w.enter(u.New)
		if matters(u.Old, u.New) {
			w.concern(u.Old, now)
			w.concern(u.New, now)
			news = true
		}
	}
	if s.anew && len(w.owners) > 0 {
		w.watchAll(now)
		news = true
	}
	return news
}

// learnNode watches all NodePorts when other addresses take them.
func (w *watch) learnNode(n *proxy.Node, now time.Time) bool {
	was := w.node.NodePorts
	w.node = n
	if slices.Equal(was, n.NodePorts) {
		return false
	}
	for _, p := range was {
		if !slices.Contains(w.former, p) {
			w.former = append(w.former, p)
		}
	}
	w.former = w.former[max(0, len(w.former)-maxFormer):]
	news := false
	for f, o := range w.owners {
		if o.kind == proxy.NodePort {
			w.extend(f, now.Add(watchTime))
			news = true
		}
	}
	return news
}

func (w *watch) enter(sp *proxy.ServicePort) {
	for _, f := range sp.Frontends {
		w.owners[frontend{f.Addr, sp.Key.Protocol}] = owner{sp, f.Kind}
	}
}

func (w *watch) leave(sp *proxy.ServicePort) {
	if sp == nil {
		return
	}
	for _, fe := range sp.Frontends {
		f := frontend{fe.Addr, sp.Key.Protocol}
		if o, ok := w.owners[f]; ok && o.row.Key == sp.Key {
			delete(w.owners, f)
		}
	}
}

// concern watches all frontends of a row, which may be nil.
func (w *watch) concern(sp *proxy.ServicePort, now time.Time) {
	if sp == nil {
		return
	}
	for _, f := range sp.Frontends {
		w.extend(frontend{f.Addr, sp.Key.Protocol}, now.Add(watchTime))
	}
}

// extend watches a frontend until a time. When there is no more room, all that
// have an owner are watched together; those that have none must be known one by
// one, since only that tells their flows from somebody else's.
func (w *watch) extend(f frontend, to time.Time) {
	if to.After(w.until[f]) {
		w.until[f] = to
	}
	if len(w.until) <= maxWatched {
		return
	}
	w.watchAll(to)
	maps.DeleteFunc(w.until, func(f frontend, _ time.Time) bool {
		_, owned := w.owners[f]
		return owned
	})
	if len(w.until) > maxWatched/2 {
		w.forgotten += len(w.until)
		w.until = map[frontend]time.Time{}
	}
}

// watchAll watches every frontend that has an owner until a time.
func (w *watch) watchAll(to time.Time) {
	if to.After(w.all) {
		w.all = to
	}
}

// watches reports whether a frontend is watched.
func (w *watch) watches(f frontend) bool {
	_, ok := w.until[f]
	if !ok && !w.all.IsZero() {
		_, ok = w.owners[f]
	}
	return ok
}

// filters returns which flows to look at, by family.
func (w *watch) filters() map[proxy.Family][]ct.Filter {
	filters := map[proxy.Family][]ct.Filter{}
	add := func(f frontend) {
		family := proxy.FamilyOf(f.addr.Addr())
		by := ct.Filter{IPv6: family == proxy.IPv6, Protocol: uint8(f.protocol)}
		if !slices.Contains(filters[family], by) {
			filters[family] = append(filters[family], by)
		}
	}
	for f := range w.until {
		add(f)
	}
	if !w.all.IsZero() {
		for f := range w.owners {
			add(f)
		}
	}
	return filters
}

// way is one direction of an untranslated flow.
type way struct {
	protocol uint8
	ct.Tuple
}

// cut notes that a flow was ended. If nothing translated it, its server's
// answer to the last packet may be under way, and then the kernel takes that
// for the beginning of a flow and the client's next packets for answers in it.
func (w *watch) cut(f *ct.Flow) {
	if !translated(f) && len(w.cuts) < maxWatched {
		w.cuts[way{f.Protocol, f.Orig}] = time.Now().Add(watchTime)
	}
}

// answers reports whether a flow began with such an answer.
func (w *watch) answers(f *ct.Flow) bool {
	_, ok := w.cuts[way{f.Protocol, ct.Tuple{Src: f.Orig.Dst, Dst: f.Orig.Src}}]
	return ok && !translated(f)
}

// due returns when the next watched frontend needs its last look.
func (w *watch) due() (at time.Time, ok bool) {
	at, ok = w.all, !w.all.IsZero()
	for _, t := range w.until {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	return at, ok
}

// looked notes a look at all watched frontends that began at a time.
func (w *watch) looked(at time.Time) {
	over := func(t time.Time) bool { return !t.After(at) }
	maps.DeleteFunc(w.until, func(_ frontend, t time.Time) bool { return over(t) })
	maps.DeleteFunc(w.cuts, func(_ way, t time.Time) bool { return over(t) })
	if over(w.all) {
		w.all = time.Time{}
	}
	if len(w.until) == 0 && w.all.IsZero() {
		w.former = nil
	}
}

// matters reports whether a changed row can make a flow stale: not if there are
// only more endpoints to go to.
func matters(old, cur *proxy.ServicePort) bool {
	if old == nil || !slices.Equal(old.Frontends, cur.Frontends) {
		return true
	}
	if old.Internal != cur.Internal || old.External != cur.External {
		return true // Flows that nothing translated may be translated now.
	}
	if len(old.Cluster)+len(old.Local) == 0 && len(cur.Cluster)+len(cur.Local) > 0 {
		return true
	}
	still := servingOf(cur)
	for e := range servingOf(old) {
		if _, ok := still[e]; !ok {
			return true
		}
	}
	return false
}

// servingOf returns the endpoints of a row, which may be nil, that may have flows.
func servingOf(sp *proxy.ServicePort) map[netip.AddrPort]struct{} {
	if sp == nil {
		return nil
	}
	set := make(map[netip.AddrPort]struct{}, len(sp.Cluster)+len(sp.Draining))
	for _, list := range [][]proxy.Endpoint{sp.Cluster, sp.Local} {
		for _, e := range list {
			set[e.Addr] = struct{}{}
		}
	}
	for _, a := range sp.Draining {
		set[a] = struct{}{}
	}
	return set
}

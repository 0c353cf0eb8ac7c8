package ebpf

import (
	"cmp"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/proxy"
)

// table is one of the maps that rows are written to.
type table uint8

const (
	services table = iota
	endpoints
	members // draining endpoints
)

// id and value are an entry of a map for the differ. Keys and values that are shorter than
// these arrays are padded with zeros.
type (
	id struct {
		table table
		key   [24]byte
	}
	value [24]byte
)

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

func entry(t table, key, v []byte) (i id, out value) {
	i.table = t
	copy(i.key[:], key)
	copy(out[:], v)
	return i, out
}

// actions returns what programs do with connections to a frontend, by origin. Connections
// of an origin without an action are left to the rules.
func (d *Dataplane) actions(sp *proxy.ServicePort, f proxy.Frontend, n *proxy.Node) (out [len(proxy.Origins)]byte) {
	if sp.Affinity != 0 || sp.Balancing != proxy.BalanceDefault && sp.Balancing != proxy.Random {
		return out
	}
	for from, r := range sp.Policy(f.Kind, n) {
		// The source that the endpoint sees must be the one that the rules would show. The
		// socket of a pod has the pod's address, which is right if the rules do not
		// masquerade. An unbound socket of the node has the address of the link towards the
		// endpoint, which is right if they do.
		own := proxy.Origin(from) == proxy.ThisNode
		if len(r.To) == 0 || r.From != nil || r.Masquerade != own || own && !d.host.sameSource(f, r.To) {
			continue
		}
		out[from] = actionTranslate
		if r.Scope == proxy.ScopeLocal {
			out[from] |= actionLocalList
		}
	}
	return out
}

// renderedRow is what the maps have of a row.
type renderedRow struct {
	frontends map[frontendKey]serviceValue
	lists     [2][]proxy.Endpoint // by scope; empty if no frontend uses the list
}

// render renders a row. If rulesOnly is set it has its frontends only, without actions:
// they must be in the map, because they take precedence over NodePorts.
func (d *Dataplane) render(r differ.Row, row uint32, rulesOnly bool) (out renderedRow) {
	if r.ServicePort == nil || r.Key.Protocol == proxy.SCTP {
		return out
	}
	if r.Key.Protocol == proxy.UDP && !rulesOnly {
		// Sockets that are already translated keep their endpoints even if new ones are not
		// translated any more.
		out.lists = [2][]proxy.Endpoint{r.Cluster, r.Local}
	}
	actions := make([][len(proxy.Origins)]byte, len(r.Frontends))
	if !rulesOnly {
		for i, f := range r.Frontends {
			actions[i] = d.actions(r.ServicePort, f, r.Node)
			for _, a := range actions[i] {
				if scope := proxy.Scope(a & actionLocalList >> 1); a&actionTranslate != 0 {
					out.lists[scope] = r.List(scope)
				}
			}
		}
	}
	counts := [2]int{len(out.lists[0]), len(out.lists[1])}
	out.frontends = make(map[frontendKey]serviceValue, len(r.Frontends))
	for i, f := range r.Frontends {
		k := makeFrontendKey(r.Key.Protocol, f)
		out.frontends[k] = makeServiceValue(k, row, counts, actions[i])
	}
	return out
}

// drainingKeys returns the keys of the draining endpoints of a row, which only UDP sockets
// need: they keep such an endpoint.
func drainingKeys(sp *proxy.ServicePort, row uint32, r renderedRow) map[memberKey]bool {
	if sp == nil || sp.Key.Protocol != proxy.UDP || len(sp.Draining) == 0 || len(r.lists[0])+len(r.lists[1]) == 0 {
		return nil
	}
	out := make(map[memberKey]bool, len(sp.Draining))
	for _, a := range sp.Draining {
		out[makeMemberKey(row, a)] = true
	}
	return out
}

// diffRow adds the difference between two versions of a row to out. The cost is that of
// the difference, plus a comparison of the lists.
func (d *Dataplane) diffRow(old, cur differ.Row, out *changes) error {
	key := cmp.Or(cur.ServicePort, old.ServicePort).Key
	row := d.rowID(key)
	if cur.ServicePort == nil {
		out.Then(func(written bool) {
			if written {
				delete(d.rowIDs, key)
			}
		})
	}
	was, is := d.render(old, row, d.rulesOnly[key]), d.render(cur, row, d.nextRulesOnly[key])
	for k, v := range was.frontends {
		out.Remove(entry(services, k[:], v[:]))
	}
	for k, v := range is.frontends {
		out.Add(entry(services, k[:], v[:]))
	}
	for _, scope := range []proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal} {
		before := slotList{row, scope, was.lists[scope], d.cidrs}
		after := slotList{row, scope, is.lists[scope], d.nextCIDRs}
		before.unlike(after, out.Remove)
		after.unlike(before, out.Add)
	}
	for k := range drainingKeys(old.ServicePort, row, was) {
		out.Remove(entry(members, k[:], nil))
	}
	for k := range drainingKeys(cur.ServicePort, row, is) {
		out.Add(entry(members, k[:], nil))
	}
	return nil
}

// slotList is a list of a row, with the CIDRs of Services that its endpoints may be within.
type slotList struct {
	row   uint32
	scope proxy.Scope
	list  []proxy.Endpoint
	cidrs []netip.Prefix
}

// unlike calls put for the entries that differ from those of the other list.
func (l slotList) unlike(other slotList, put func(id, value)) {
	sameCIDRs := slices.Equal(l.cidrs, other.cidrs)
	for i, e := range l.list {
		if i >= len(other.list) || other.list[i] != e || !sameCIDRs && l.inServiceRange(e) != other.inServiceRange(e) {
			k := makeSlotKey(l.row, l.scope, i)
			v := makeEndpointValue(k, e, l.inServiceRange(e))
			put(entry(endpoints, k[:], v[:]))
		}
	}
}

func (l slotList) inServiceRange(e proxy.Endpoint) bool {
	return proxy.Contains(l.cidrs, e.Addr.Addr())
}

// rowsWithin returns the changed rows, and those that have an endpoint which is within the
// CIDRs of Services either now or next. Other rows do not depend on the CIDRs.
func (d *Dataplane) rowsWithin(want *proxy.State, changed []proxy.PortKey) []proxy.PortKey {
	moves := func(e proxy.Endpoint) bool {
		return proxy.Contains(d.cidrs, e.Addr.Addr()) != proxy.Contains(d.nextCIDRs, e.Addr.Addr())
	}
	out := slices.Clone(changed)
	for key, sp := range want.Rows {
		if d.differ.Row(key).ServicePort == sp && (slices.ContainsFunc(sp.Cluster, moves) || slices.ContainsFunc(sp.Local, moves)) {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, proxy.ComparePortKeys)
	return slices.Compact(out)
}

// rowID returns the number by which the maps refer to a row. Numbers are not reused, so
// that a socket of a row that is gone never matches another row.
func (d *Dataplane) rowID(k proxy.PortKey) uint32 {
	n, ok := d.rowIDs[k]
	for !ok {
		d.lastID++
		n, ok = d.lastID, !d.usedIDs[d.lastID]
	}
	d.rowIDs[k] = n
	return n
}

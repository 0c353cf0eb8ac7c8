package ebpf

import (
	"cmp"

	"sluice/internal/dataplane/differ"
	"sluice/internal/proxy"
)

// table is one of the maps that rows are written to.
type table uint8

const (
	services table = iota
	endpoints
	members
)

// id names an entry of a map, value is what it has; both are as long as the map's.
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

// actions says what sockets do for each origin of a frontend. What they leave, the
// rules do.
func (d *Dataplane) actions(sp *proxy.ServicePort, f proxy.Frontend, n *proxy.Node) (out [len(proxy.Origins)]byte) {
	if sp.Affinity != 0 || sp.Balancing != proxy.BalanceDefault && sp.Balancing != proxy.Random {
		return out
	}
	for from, r := range sp.Policy(f.Kind, n) {
		// A pod's socket shows its own address, and one of the node, which is not
		// bound, that of the link towards the endpoint, as masquerading does.
		own := proxy.Origin(from) == proxy.ThisNode
		if len(r.To) == 0 || r.From != nil || r.Masquerade != own || own && !d.host.plain(f, r.To) {
			continue
		}
		out[from] = translate
		if r.Scope == proxy.ScopeLocal {
			out[from] |= localList
		}
	}
	return out
}

// form is a row as it is written.
type form struct {
	frontends map[frontendKey]serviceValue
	lists     [2][]proxy.Endpoint // by scope; those that no frontend takes are empty
}

// form renders a row; one that is left has its frontends only, which go before
// NodePorts.
func (d *Dataplane) form(r differ.Row, row uint32, left bool) (out form) {
	if r.ServicePort == nil || r.Key.Protocol == proxy.SCTP {
		return out
	}
	if r.Key.Protocol == proxy.UDP && !left {
		// Sockets that were translated once go on when others are not any more.
		out.lists = [2][]proxy.Endpoint{r.Cluster, r.Local}
	}
	all := make([][len(proxy.Origins)]byte, len(r.Frontends))
	for i, f := range r.Frontends {
		if left {
			continue
		}
		all[i] = d.actions(r.ServicePort, f, r.Node)
		for _, a := range all[i] {
			if scope := proxy.Scope(a & localList >> 1); a&translate != 0 {
				out.lists[scope] = r.List(scope)
			}
		}
	}
	counts := [2]int{len(out.lists[0]), len(out.lists[1])}
	out.frontends = make(map[frontendKey]serviceValue, len(all))
	for i, f := range r.Frontends {
		k := frontendOf(r.Key.Protocol, f)
		out.frontends[k] = serviceOf(k, row, counts, all[i])
	}
	return out
}

// memberKeys returns the endpoints of a form that keep what they have.
func memberKeys(sp *proxy.ServicePort, row uint32, f form) map[memberKey]bool {
	if sp == nil || sp.Key.Protocol != proxy.UDP || len(sp.Draining) == 0 || len(f.lists[0])+len(f.lists[1]) == 0 {
		return nil
	}
	out := make(map[memberKey]bool, len(sp.Draining))
	for _, a := range sp.Draining {
		out[memberOf(row, a)] = true
	}
	return out
}

// row renders the difference between two forms of a row. It costs what the
// difference is, but for a comparison of the lists.
func (d *Dataplane) row(old, cur differ.Row, out *changes) error {
	key := cmp.Or(cur.ServicePort, old.ServicePort).Key
	row := d.rowID(key)
	if cur.ServicePort == nil {
		out.Then(func(written bool) {
			if written {
				delete(d.ids, key)
			}
		})
	}
	was, is := d.form(old, row, d.left[key]), d.form(cur, row, d.leave[key])
	for k, v := range was.frontends {
		out.Remove(entry(services, k[:], v[:]))
	}
	for k, v := range is.frontends {
		out.Add(entry(services, k[:], v[:]))
	}
	for _, scope := range []proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal} {
		d.slots(row, scope, was.lists[scope], is.lists[scope], out.Remove)
		d.slots(row, scope, is.lists[scope], was.lists[scope], out.Add)
	}
	for k := range memberKeys(old.ServicePort, row, was) {
		out.Remove(entry(members, k[:], nil))
	}
	for k := range memberKeys(cur.ServicePort, row, is) {
		out.Add(entry(members, k[:], nil))
	}
	return nil
}

// slots calls put for the endpoints of a list that do not have the same place in
// another one.
func (d *Dataplane) slots(row uint32, s proxy.Scope, list, other []proxy.Endpoint, put func(id, value)) {
	for i, e := range list {
		if i >= len(other) || other[i] != e {
			k := slotOf(row, s, i)
			v := endpointOf(k, e, d.cidrs)
			put(entry(endpoints, k[:], v[:]))
		}
	}
}

// rowID returns the number of a row in the maps. Numbers are not used again, so
// that nobody's sockets are taken for another row's.
func (d *Dataplane) rowID(k proxy.PortKey) uint32 {
	n, ok := d.ids[k]
	for !ok {
		d.lastID++
		n, ok = d.lastID, !d.used[d.lastID]
	}
	d.ids[k] = n
	return n
}

package traffic

import (
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// frontend is an address and port that clients send to. A NodePort has the unspecified address of
// its family.
type frontend struct {
	addr     netip.AddrPort
	protocol proxy.Protocol
}

// index finds rows by their frontends.
type index struct {
	rows  map[frontend]*proxy.ServicePort
	node  *proxy.Node
	local []netip.Prefix // the node's own addresses, as proxy.Outermost returns them
}

// find returns the row of a destination, or nil. An exact address takes precedence over a NodePort.
func (x *index) find(p proxy.Protocol, dst netip.AddrPort) *proxy.ServicePort {
	if sp := x.rows[frontend{dst, p}]; sp != nil {
		return sp
	}
	if a := dst.Addr(); !x.node.TakesNodePorts(a) || !proxy.WithinOutermost(x.local, a) {
		return nil
	}
	unspecified := proxy.FamilyOf(dst.Addr()).Unspecified()
	return x.rows[frontend{netip.AddrPortFrom(unspecified, dst.Port()), p}]
}

// remove removes a row, except for frontends that belong to another row by now.
func (x *index) remove(sp *proxy.ServicePort) {
	for _, f := range sp.Frontends {
		key := frontend{f.Addr, sp.Key.Protocol}
		if owner := x.rows[key]; owner != nil && owner.Key == sp.Key {
			delete(x.rows, key)
		}
	}
}

// change adds or replaces a row.
func (x *index) change(u proxy.Upsert) {
	if u.Old != nil && !slices.Equal(u.Old.Frontends, u.New.Frontends) {
		x.remove(u.Old)
	}
	for _, f := range u.New.Frontends {
		x.rows[frontend{f.Addr, u.New.Key.Protocol}] = u.New
	}
}

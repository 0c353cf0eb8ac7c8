package ipvs

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// id names a virtual server, or a real server of one.
type id struct {
	server ipvs.Server
	real   netip.AddrPort // zero: the virtual server itself
}

// value is what a server is like.
type value struct {
	settings ipvs.Settings
	weight   uint32
}

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

// front is a frontend that IPVS takes.
type front struct {
	settings ipvs.Settings
	to       []proxy.Endpoint
	draining []netip.AddrPort
}

// takes reports whether a frontend is a virtual server: if all clients take the
// same list, and its address is not the host's own by another link, where other
// ports are none of ours. IPVS sends nothing on that comes from loopback.
func (d *Dataplane) takes(sp *proxy.ServicePort, f proxy.Frontend, _ proxy.Route) bool {
	p := sp.Policy(f.Kind, &proxy.Node{})
	return p[proxy.Elsewhere].Scope == p[proxy.ThisNode].Scope && !d.local[f.Addr.Addr()] && (f.Kind != proxy.NodePort || !d.opens)
}

// fronts returns the virtual servers of a row: one for each frontend that is
// taken, be there endpoints or not, so that those that leave can drain.
func (d *Dataplane) fronts(sp *proxy.ServicePort) map[ipvs.Server]front {
	if sp == nil {
		return nil
	}
	out := make(map[ipvs.Server]front, len(sp.Frontends))
	for _, f := range sp.Frontends {
		r := sp.Policy(f.Kind, &proxy.Node{})[proxy.Elsewhere]
		if !d.takes(sp, f, r) {
			continue
		}
		at := f.Addr
		if f.Kind == proxy.NodePort {
			at = netip.AddrPortFrom(aliases[sp.Key.Family], at.Port())
		}
		out[ipvs.Server{Protocol: uint8(sp.Key.Protocol), Addr: at}] = front{d.settings(sp, r.To), r.To, sp.Draining}
	}
	return out
}

// settings says how the virtual servers of a row choose.
func (d *Dataplane) settings(sp *proxy.ServicePort, to []proxy.Endpoint) ipvs.Settings {
	name := scheduler(d.options)
	if by, ok := schedulerOf[sp.Balancing]; ok {
		name = by
	}
	if by, ok := weighted[name]; ok && slices.ContainsFunc(to, func(e proxy.Endpoint) bool { return e.Share() != 1 }) {
		name = by
	}
	return ipvs.Settings{Scheduler: name, HashPorts: name == "mh", Persistence: sp.Affinity}
}

// schedulerOf says which scheduler chooses in which way, weighted which one does
// the same by weights.
var (
	schedulerOf = map[proxy.Balancing]string{proxy.RoundRobin: "rr", proxy.LeastConnections: "lc", proxy.SourceHash: "sh", proxy.Maglev: "mh"}
	weighted    = map[string]string{"rr": "wrr", "lc": "wlc"}
)

// row renders the difference between two forms of a row. It costs what the
// difference is, but for a comparison of the lists.
func (d *Dataplane) row(old, cur differ.Row, out *changes) error {
	was, is := d.fronts(old.ServicePort), d.fronts(cur.ServicePort)
	for s := range is {
		if d.foreign[s] {
			return errForeign(s)
		}
	}
	for s, f := range was {
		if now, stays := is[s]; !stays || now.settings != f.settings {
			out.Remove(id{server: s}, value{settings: f.settings})
		}
		each(f, is[s], s, out.Remove)
	}
	for s, f := range is {
		if before, had := was[s]; !had || before.settings != f.settings {
			out.Add(id{server: s}, value{settings: f.settings})
		}
		each(f, was[s], s, out.Add)
	}
	return nil
}

// each calls put for the real servers of a frontend that do not have the same
// place in another one.
func each(f, other front, s ipvs.Server, put func(id, value)) {
	for i, e := range f.to {
		if i >= len(other.to) || other.to[i].Addr != e.Addr || other.to[i].Weight != e.Weight {
			put(id{s, e.Addr}, value{weight: uint32(e.Share())})
		}
	}
	for i, a := range f.draining {
		if i >= len(other.draining) || other.draining[i] != a {
			put(id{s, a}, value{})
		}
	}
}

func errForeign(s ipvs.Server) error {
	return fmt.Errorf("%v is another program's, as its address is not on link %s: delete it, or change the Service", s, linkName)
}

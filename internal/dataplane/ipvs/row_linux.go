package ipvs

import (
	"cmp"
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
	reals    []ipvs.Real
}

// takes reports whether a route leads to a virtual server: one has one list, that
// of clients elsewhere, and its address is not the host's own by another link, where
// other ports are none of ours, nor one at which another program has virtual servers:
// on our link they would be ours to the next Sync. IPVS sends nothing on that comes from loopback, and
// would take what is on its way to the sockets of mode userspace.
func (d *Dataplane) takes(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) bool {
	far := sp.Policy(f.Kind, &proxy.Node{})[proxy.Elsewhere]
	at := f.Addr.Addr()
	return !d.relays && r.Scope == far.Scope && !d.local[at] && d.foreign[at] == nil && (f.Kind != proxy.NodePort || !d.opens)
}

// fronts returns the virtual servers of a row: one for each frontend that is
// taken, be there endpoints or not, so that those that leave can drain.
func (d *Dataplane) fronts(sp *proxy.ServicePort) map[ipvs.Server]front {
	if sp == nil {
		return nil
	}
	lists := d.lists(sp)
	out := make(map[ipvs.Server]front, len(sp.Frontends))
	for _, f := range sp.Frontends {
		r := sp.Policy(f.Kind, &proxy.Node{})[proxy.Elsewhere]
		s := serverOf(sp, f)
		if d.takes(sp, f, r) {
			out[s] = lists[r.Scope]
		} else {
			d.left[s] = true
		}
	}
	return out
}

// serverOf names the virtual server of a frontend.
func serverOf(sp *proxy.ServicePort, f proxy.Frontend) ipvs.Server {
	s := ipvs.Server{Protocol: uint8(sp.Key.Protocol), Addr: f.Addr}
	if f.Kind == proxy.NodePort {
		s.Addr = netip.AddrPortFrom(aliases[sp.Key.Family], f.Addr.Port())
	}
	return s
}

// checkForeign returns an error if another program has the virtual server of a frontend,
// unless its address is the host's by another link: rules translate for that one.
func (d *Dataplane) checkForeign(sp *proxy.ServicePort) error {
	if sp == nil {
		return nil
	}
	for _, f := range sp.Frontends {
		if s := serverOf(sp, f); d.foreign[s.Addr.Addr()][s] && !d.local[s.Addr.Addr()] {
			return errForeign(s)
		}
	}
	return nil
}

// lists returns the real servers of a row's frontends, by list. Where flows end with their
// real server, one of the other list stays with weight 0: it serves, and keeps what it has.
func (d *Dataplane) lists(sp *proxy.ServicePort) map[proxy.Scope]front {
	to, out := map[proxy.Scope][]proxy.Endpoint{}, map[proxy.Scope]front{}
	for _, f := range sp.Frontends {
		r := sp.Policy(f.Kind, &proxy.Node{})[proxy.Elsewhere]
		to[r.Scope] = r.To
	}
	for scope, list := range to {
		idle := slices.Clip(sp.Draining)
		for other, more := range to {
			if other != scope && sp.Key.Protocol.EndsStaleFlows() {
				idle = append(idle, lacking(list, more)...)
			}
		}
		out[scope] = d.front(sp, list, idle)
	}
	return out
}

// lacking returns those of another list that a list does not have.
func lacking(list, other []proxy.Endpoint) (addrs []netip.AddrPort) {
	has := proxy.AddressesOf(list)
	for _, e := range other {
		if !has[e.Addr] {
			addrs = append(addrs, e.Addr)
		}
	}
	return addrs
}

// front says how a row's virtual servers choose, and among which real servers.
func (d *Dataplane) front(sp *proxy.ServicePort, to []proxy.Endpoint, idle []netip.AddrPort) front {
	f := front{ipvs.Settings{Scheduler: cmp.Or(schedulerOf[sp.Balancing], scheduler(d.options)), Persistence: sp.Affinity}, nil}
	for _, e := range to {
		if by := weighted[f.settings.Scheduler]; by != "" && e.Share() > 1 {
			f.settings.Scheduler = by
		}
		f.reals = append(f.reals, ipvs.Real{Addr: e.Addr, Weight: uint32(e.Share())})
	}
	if f.settings.Scheduler == "sh" {
		fitBuckets(f.reals)
	}
	for _, a := range idle {
		f.reals = append(f.reals, ipvs.Real{Addr: a})
	}
	// They keep the places of one that drains, whose new clients would be refused.
	f.settings.Fallback = f.settings.Scheduler == "sh" || f.settings.Scheduler == "mh"
	f.settings.HashPorts = sp.Balancing == proxy.BalanceDefault && f.settings.Scheduler == "mh" // as kube-proxy has it
	return f
}

// fitBuckets makes weights small enough for scheduler sh, which gives each real
// server as many of its buckets in a row: the first ones would get all.
func fitBuckets(reals []ipvs.Real) {
	const buckets = 256
	var total uint64
	for _, r := range reals {
		total += uint64(r.Weight)
	}
	for i := range reals {
		if w := &reals[i].Weight; total > buckets {
			*w = max(1, uint32(uint64(*w)*buckets/total))
		}
	}
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
	if err := d.checkForeign(cur.ServicePort); err != nil {
		return err
	}
	was, is := d.fronts(old.ServicePort), d.fronts(cur.ServicePort)
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
	for i, r := range f.reals {
		if i >= len(other.reals) || other.reals[i] != r {
			put(id{s, r.Addr}, value{weight: r.Weight})
		}
	}
}

func errForeign(s ipvs.Server) error {
	return fmt.Errorf("%v is another program's, as its address is not on link %s: delete it, or change the Service", s, linkName)
}

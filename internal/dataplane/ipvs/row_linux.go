package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// id names a virtual server, or a real server of one.
type id struct {
	server ipvs.Server
	real   netip.AddrPort // zero: the virtual server itself
}

// value is the configuration of a server.
type value struct {
	settings ipvs.Settings // of a virtual server
	weight   uint32        // of a real server
}

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

// front is the virtual server of a frontend.
type front struct {
	settings ipvs.Settings
	reals    []ipvs.Real
}

// takes reports whether IPVS, not the rules, chooses the endpoint of a route to a
// frontend. A virtual server has one list of endpoints, the one for clients
// elsewhere. It is not used at an address that the host has on another link, whose
// other ports are not ours; nor at an address where another program has virtual
// servers, which the next Sync would take for ours if we added the address to our
// link; nor while a daemon in mode userspace runs, since IPVS would intercept the
// packets to its sockets.
func (d *Dataplane) takes(sp *proxy.ServicePort, f proxy.Frontend, r proxy.Route) bool {
	far := sp.Policy(f.Kind, &proxy.Node{})[proxy.Elsewhere]
	at := f.Addr.Addr()
	return !d.relays && r.Scope == far.Scope && !d.local[at] && d.foreign[at] == nil
}

// fronts returns the virtual servers of a row, one for each frontend that IPVS
// takes. Those without endpoints are included, so that removed real servers can
// drain.
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

// serverOf returns the virtual server of a frontend.
func serverOf(sp *proxy.ServicePort, f proxy.Frontend) ipvs.Server {
	s := ipvs.Server{Protocol: uint8(sp.Key.Protocol), Addr: f.Addr}
	if f.Kind == proxy.NodePort {
		s.Addr = netip.AddrPortFrom(aliases[sp.Key.Family], f.Addr.Port())
	}
	return s
}

// check returns why a row cannot be served: it is too large, or has an address of ours, or
// another program owns the virtual server of a frontend. At an address of another link
// that is no conflict: there the rules translate.
func (d *Dataplane) check(sp *proxy.ServicePort) error {
	if sp == nil {
		return nil
	}
	for _, f := range sp.Frontends {
		if a := f.Addr.Addr(); a == aliases[proxy.FamilyOf(a)] {
			return fmt.Errorf("%v is the address that mode ipvs translates NodePorts to: change the Service", a)
		}
		if s := serverOf(sp, f); d.foreign[s.Addr.Addr()][s] && !d.local[s.Addr.Addr()] {
			return errForeign(s)
		}
	}
	return nftables.CheckSize(sp)
}

// lists returns the virtual server configurations of a row, one for each list of
// endpoints. With a protocol whose flows end with their real server, endpoints of the
// row's other list are added with weight 0: they still serve, so their flows must last.
func (d *Dataplane) lists(sp *proxy.ServicePort) map[proxy.Scope]front {
	to, out := map[proxy.Scope][]proxy.Endpoint{}, map[proxy.Scope]front{}
	for _, f := range sp.Frontends {
		r := sp.Policy(f.Kind, &proxy.Node{})[proxy.Elsewhere]
		to[r.Scope] = r.To
	}
	for scope, list := range to {
		idle := slices.Clip(sp.Draining) // get weight 0
		for other, more := range to {
			if other != scope && sp.Key.Protocol.EndsStaleFlows() {
				idle = append(idle, lacking(list, more)...)
			}
		}
		out[scope] = d.front(sp, list, idle)
	}
	return out
}

// lacking returns the endpoints of other that list does not have.
func lacking(list, other []proxy.Endpoint) (addrs []netip.AddrPort) {
	has := proxy.AddressesOf(list)
	for _, e := range other {
		if !has[e.Addr] {
			addrs = append(addrs, e.Addr)
		}
	}
	return addrs
}

// front returns the scheduler settings of a row's virtual servers and their real
// servers: endpoints with their weights, and idle addresses with weight 0.
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
	// These schedulers keep the hash buckets of a server with weight 0, and would refuse
	// the new clients that hash to it.
	f.settings.Fallback = f.settings.Scheduler == "sh" || f.settings.Scheduler == "mh"
	f.settings.HashPorts = sp.Balancing == proxy.BalanceDefault && f.settings.Scheduler == "mh" // as kube-proxy has it
	return f
}

// fitBuckets scales weights down for scheduler sh, which fills its 256 hash buckets
// with as many consecutive entries per server as its weight: with large weights the
// first servers would get all of them.
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

var (
	// schedulerOf maps a load-balancing method to the scheduler that implements it.
	schedulerOf = map[proxy.Balancing]string{proxy.RoundRobin: "rr", proxy.LeastConnections: "lc", proxy.SourceHash: "sh", proxy.Maglev: "mh"}
	// weighted maps a scheduler to its weighted form.
	weighted = map[string]string{"rr": "wrr", "lc": "wlc"}
)

// row renders the difference between two forms of a row. Apart from comparing the lists,
// its cost depends on the difference only.
func (d *Dataplane) row(old, cur differ.Row, out *changes) error {
	if err := d.check(cur.ServicePort); err != nil {
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

// each calls put for the real servers of f that are not at the same index in other.
func each(f, other front, s ipvs.Server, put func(id, value)) {
	for i, r := range f.reals {
		if i >= len(other.reals) || other.reals[i] != r {
			put(id{s, r.Addr}, value{weight: r.Weight})
		}
	}
}

func errForeign(s ipvs.Server) error {
	return fmt.Errorf("%v belongs to another program, since its address is not on link %s: delete it, or change the Service", s, linkName)
}

package kernelspace

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/hns"
	"sluice/internal/proxy"
)

// id names an endpoint by its address, or a load balancer by its frontend.
type id struct {
	addr     netip.Addr // a load balancer without one has the node's addresses
	family   proxy.Family
	protocol proxy.Protocol // 0: an endpoint
	port     uint16
	check    bool   // a load balancer to where health checks are answered
	vip      bool   // an endpoint that leads to this node
	stray    string // the ID in HNS of one that cannot be used, as another has its place
}

// value is what a load balancer is to be like. Of an endpoint the ID tells all.
type value struct {
	to     []proxy.Endpoint // sorted
	port   uint16           // of theirs
	flags  hns.Flags
	row    proxy.PortKey // that wants it
	listed bool          // it is not known what is wanted: HNS has it
}

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

// row renders the difference between two forms of a row, and notes what HNS cannot
// do of the new one.
func (d *Dataplane) row(old, cur differ.Row, out *changes) error {
	switch source := d.options.SourceVIP; {
	case cur.ServicePort == nil:
	case cur.Key.Protocol == proxy.SCTP:
		return errors.New("HNS has no load balancers for SCTP")
	case d.has.overlay() && source.IsValid() && cur.Key.Family != proxy.FamilyOf(source): // the network came after Probe
		return fmt.Errorf("%v is not served: an overlay network has the family of its source VIP, %v", cur.Key.Family, source)
	}
	_ = d.render(old, out.Remove) // what HNS cannot do was told when it was added
	if limits := d.render(cur, out.Add); limits != nil {
		d.turn.refused[cur.Key] = limits
	}
	return nil
}

// render puts the objects of a row and says what HNS cannot do of it; nil: nothing.
func (d *Dataplane) render(r differ.Row, put func(id, value)) error {
	sp := r.ServicePort
	if sp == nil {
		return nil
	}
	var limits []error
	var left []netip.AddrPort
	for _, f := range sp.Frontends {
		v, others, limit := d.balancer(sp, f, r.Node)
		limits, left = append(limits, limit), append(left, others...)
		if len(v.to) == 0 {
			continue
		}
		x := id{addr: f.Addr.Addr(), family: sp.Key.Family, protocol: sp.Key.Protocol, port: f.Addr.Port()}
		if f.Kind == proxy.NodePort {
			x.addr = netip.Addr{}
		}
		put(x, v)
		for _, e := range d.needs(x, v) {
			put(e, value{})
		}
		port := cmp.Or(sp.HealthCheckPort, d.options.HealthzPort)
		if f.Kind == proxy.LoadBalancer && d.options.ForwardHealthCheckVIP && port != 0 {
			x.protocol, x.port, x.check = proxy.TCP, port, true
			put(x, value{port: port, flags: v.flags & (hns.UseMux | hns.PreserveDIP), row: sp.Key})
		}
	}
	if len(left) > 0 {
		slices.SortFunc(left, netip.AddrPort.Compare)
		left = slices.Compact(left)
		limits = append(limits, fmt.Errorf("%v and %d more get no connections: HNS wants the same port of all endpoints", left[0], len(left)-1))
	}
	if byClient(sp) && !d.features.SessionAffinity {
		limits = append(limits, errors.New("clients do not keep their endpoint: this version of Windows cannot do that"))
	}
	return errors.Join(limits...)
}

// needs returns the endpoints that we make for a load balancer: those of pods
// elsewhere, and that of a ClusterIP on an overlay network.
func (d *Dataplane) needs(x id, v value) (all []id) {
	for _, e := range v.to {
		if !e.Local {
			all = append(all, id{addr: e.Addr.Addr()})
		}
	}
	if v.flags&hns.ExternalVIP == 0 && !x.check && d.has.overlay() {
		all = append(all, id{addr: x.addr, vip: true})
	}
	return all
}

// balancer returns the load balancer of a frontend, with the flags that kube-proxy
// gives that kind, the endpoints with other ports, which it cannot have, and what
// else HNS cannot do. One that leads nowhere is not to be.
//
// HNS does not tell where a client is, so all take the list that clients elsewhere
// take: the others must not be led to other nodes by a policy that keeps clients'
// addresses.
func (d *Dataplane) balancer(sp *proxy.ServicePort, f proxy.Frontend, n *proxy.Node) (v value, left []netip.AddrPort, limit error) {
	p := sp.Policy(f.Kind, n)[proxy.Elsewhere]
	shows := f.Kind != proxy.ClusterIP && p.Scope == proxy.ScopeLocal
	switch {
	case p.From != nil:
		return v, nil, fmt.Errorf("%v is not served: HNS cannot keep to loadBalancerSourceRanges", f.Addr)
	case len(p.To) > 0 && f.Kind == proxy.NodePort && !opens(n, sp.Key.Family):
		return v, nil, fmt.Errorf("NodePort %d is not served: HNS cannot keep to nodePortAddresses", f.Addr.Port())
	case shows && !d.features.DSR && len(p.To) > 0:
		limit = fmt.Errorf("clients of %v are hidden from endpoints: this version of Windows has no direct server return", f.Addr)
	}
	v.row, v.port = sp.Key, commonPort(p.To)
	for _, e := range p.To {
		if e.Addr.Port() == v.port {
			v.to = append(v.to, e)
		} else {
			left = append(left, e.Addr)
		}
	}
	slices.SortFunc(v.to, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	set := func(f hns.Flags, on bool) {
		if on {
			v.flags |= f
		}
	}
	set(hns.DSR, shows && d.features.DSR || f.Kind == proxy.ClusterIP && d.options.DSR)
	set(hns.ExternalVIP, f.Kind != proxy.ClusterIP)
	set(hns.LocalRoutedVIP, f.Kind == proxy.NodePort)
	set(hns.UseMux|hns.PreserveDIP, f.Kind == proxy.LoadBalancer && sp.PreserveDestination && d.features.DSR)
	set(hns.ByClient, byClient(sp) && d.features.SessionAffinity)
	return v, left, limit
}

// commonPort returns the port that most endpoints have, of several the lowest.
func commonPort(all []proxy.Endpoint) (best uint16) {
	n := map[uint16]int{}
	for _, e := range all {
		n[e.Addr.Port()]++
	}
	for p := range n {
		if best == 0 || cmp.Or(cmp.Compare(n[p], n[best]), cmp.Compare(best, p)) > 0 {
			best = p
		}
	}
	return best
}

// opens reports whether NodePorts of a family are open on all addresses of a node.
// HNS cannot open them on some.
func opens(n *proxy.Node, f proxy.Family) bool {
	within, _ := n.NodePortAddresses(f)
	return slices.ContainsFunc(within, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

func byClient(sp *proxy.ServicePort) bool { return sp.Affinity > 0 || sp.Balancing == proxy.SourceHash }

// endpoint returns an endpoint as it is to be. On an overlay network it is at its
// node; what is on no node is reached by ours, and the source VIP is here.
func (d *Dataplane) endpoint(x id) hns.Endpoint {
	e := hns.Endpoint{Network: d.has.network.ID, Addrs: []netip.Addr{x.addr}, MAC: macOf(x.addr), Remote: true}
	if !d.has.overlay() {
		return e
	}
	e.Provider = proxy.AddrOf(d.ips, proxy.FamilyOf(x.addr))
	if at := d.has.providerOf(x.addr); x.vip {
		e.MAC = d.has.macs[e.Provider]
	} else if at.IsValid() {
		e.Provider = at
	}
	if x.addr == d.options.SourceVIP {
		e.Remote, e.Provider = false, netip.Addr{}
	}
	return e
}

// source returns what endpoints see as their client on an overlay network: the
// source VIP, or this node if one of them is no pod and could not answer that.
func (d *Dataplane) source(f proxy.Family, to []proxy.Endpoint) netip.Addr {
	if !d.has.overlay() {
		return netip.Addr{}
	}
	for _, e := range to {
		if at := d.has.providerOf(e.Addr.Addr()); !e.Local && (!at.IsValid() || at == e.Addr.Addr()) {
			return proxy.AddrOf(d.ips, f)
		}
	}
	return d.options.SourceVIP
}

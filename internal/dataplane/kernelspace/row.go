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

// id identifies an endpoint by its address, or a load balancer by its frontend.
type id struct {
	addr     netip.Addr // invalid for a load balancer of a NodePort, which has all addresses of the node
	family   proxy.Family
	protocol proxy.Protocol // 0 for an endpoint
	port     uint16
	check    bool   // a load balancer to the endpoint that answers health checks
	vip      bool   // an endpoint whose packets are delivered to this node
	stray    string // ID in HNS of an object that cannot be used, because another has its address or frontend
}

// value is the wanted state of a load balancer. Endpoints have none: their id determines them.
type value struct {
	to     []proxy.Endpoint // sorted
	port   uint16           // of the endpoints
	flags  hns.Flags
	row    proxy.PortKey // the row that wants it, if no others may
	listed bool          // HNS has it, and the rest of the value is not known
}

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

// row renders the difference between two versions of a row, and records what HNS cannot do for the
// new one.
func (d *Dataplane) row(old, cur differ.Row, out *changes) error {
	switch source := d.options.SourceVIP; {
	case cur.ServicePort == nil:
	case cur.Key.Protocol == proxy.SCTP:
		return errors.New("HNS has no load balancers for SCTP")
	case d.inv.overlay() && source.IsValid() && cur.Key.Family != proxy.FamilyOf(source): // the network was created after Probe
		return fmt.Errorf("%v is not served: an overlay network has the family of its source VIP, %v", cur.Key.Family, source)
	}
	_ = d.render(old, out.Remove) // what HNS cannot do was reported when the row was added
	if limits := d.render(cur, out.Add); limits != nil {
		d.op.refused[cur.Key] = limits
	}
	return nil
}

// render passes the objects of a row to put, and returns what HNS cannot do for it, or nil.
func (d *Dataplane) render(r differ.Row, put func(id, value)) error {
	sp := r.ServicePort
	if sp == nil {
		return nil
	}
	var limits []error
	var otherPorts []netip.AddrPort
	for _, f := range sp.Frontends {
		v, others, limit := d.balancer(sp, f, r.Node)
		limits, otherPorts = append(limits, limit), append(otherPorts, others...)
		if len(v.to) == 0 {
			continue
		}
		x := id{addr: f.Addr.Addr(), family: sp.Key.Family, protocol: sp.Key.Protocol, port: f.Addr.Port()}
		if f.Kind == proxy.NodePort {
			x.addr = netip.Addr{}
		}
		put(x, v)
		for _, e := range d.requiredEndpoints(x, v) {
			put(e, value{})
		}
		port := cmp.Or(sp.HealthCheckPort, d.options.HealthzPort)
		if f.Kind == proxy.LoadBalancer && d.options.ForwardHealthCheckVIP && port != 0 {
			x.protocol, x.port, x.check = proxy.TCP, port, true
			put(x, value{port: port, flags: v.flags & (hns.UseMux | hns.PreserveDIP)})
		}
	}
	if len(otherPorts) > 0 {
		slices.SortFunc(otherPorts, netip.AddrPort.Compare)
		otherPorts = slices.Compact(otherPorts)
		limits = append(limits, fmt.Errorf("%v and %d more get no connections: HNS requires all endpoints of a load balancer to have the same port", otherPorts[0], len(otherPorts)-1))
	}
	if keepsClients(sp) && !d.features.SessionAffinity {
		limits = append(limits, errors.New("clients do not keep their endpoint: this version of Windows has no session affinity"))
	}
	return errors.Join(limits...)
}

// requiredEndpoints returns the endpoints that we create for a load balancer: those of pods on
// other nodes, and on an overlay network that of a ClusterIP.
func (d *Dataplane) requiredEndpoints(x id, v value) (all []id) {
	for _, e := range v.to {
		if !e.Local {
			all = append(all, id{addr: e.Addr.Addr()})
		}
	}
	if v.flags&hns.ExternalVIP == 0 && !x.check && d.inv.overlay() {
		all = append(all, id{addr: x.addr, vip: true})
	}
	return all
}

// balancer returns the load balancer of a frontend, with the flags that kube-proxy gives to its
// kind; the endpoints that it cannot have, because their port differs; and what else HNS cannot do.
// If the value has no endpoints, the frontend gets no load balancer.
//
// HNS does not match where a client is, so all clients use the list of clients from elsewhere: a
// policy that preserves client addresses must not send those to other nodes.
func (d *Dataplane) balancer(sp *proxy.ServicePort, f proxy.Frontend, n *proxy.Node) (v value, otherPorts []netip.AddrPort, limit error) {
	p := sp.Policy(f.Kind, n)[proxy.Elsewhere]
	preservesClient := f.Kind != proxy.ClusterIP && p.Scope == proxy.ScopeLocal
	switch {
	case p.From != nil:
		return v, nil, fmt.Errorf("%v is not served: HNS cannot restrict clients to loadBalancerSourceRanges", f.Addr)
	case len(p.To) > 0 && f.Kind == proxy.NodePort && !nodePortsOnAll(n, sp.Key.Family):
		return v, nil, fmt.Errorf("NodePort %d is not served: HNS cannot restrict NodePorts to nodePortAddresses", f.Addr.Port())
	case preservesClient && !d.features.DSR && len(p.To) > 0:
		limit = fmt.Errorf("clients of %v are hidden from endpoints: this version of Windows has no direct server return", f.Addr)
	}
	v.row, v.port = sp.Key, commonPort(p.To)
	for _, e := range p.To {
		if e.Addr.Port() == v.port {
			v.to = append(v.to, e)
		} else {
			otherPorts = append(otherPorts, e.Addr)
		}
	}
	slices.SortFunc(v.to, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	set := func(f hns.Flags, on bool) {
		if on {
			v.flags |= f
		}
	}
	set(hns.DSR, preservesClient && d.features.DSR || f.Kind == proxy.ClusterIP && d.options.DSR)
	set(hns.ExternalVIP, f.Kind != proxy.ClusterIP)
	set(hns.LocalRoutedVIP, f.Kind == proxy.NodePort)
	set(hns.UseMux|hns.PreserveDIP, f.Kind == proxy.LoadBalancer && sp.PreserveDestination && d.features.DSR)
	set(hns.ByClient, keepsClients(sp) && d.features.SessionAffinity)
	return v, otherPorts, limit
}

// commonPort returns the most frequent port of the endpoints; of several, the lowest.
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

// nodePortsOnAll reports whether all addresses of a node accept NodePorts of a family. HNS cannot
// restrict them to some.
func nodePortsOnAll(n *proxy.Node, f proxy.Family) bool {
	within, _ := n.NodePortAddresses(f)
	return slices.ContainsFunc(within, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

func keepsClients(sp *proxy.ServicePort) bool {
	return sp.Affinity > 0 || sp.Balancing == proxy.SourceHash
}

// endpoint returns an endpoint as it is to be created. On an overlay network it has the address of
// its node; an address that no node has is reached through this one, and the source VIP is local.
func (d *Dataplane) endpoint(x id) hns.Endpoint {
	e := hns.Endpoint{Network: d.inv.network.ID, Addrs: []netip.Addr{x.addr}, MAC: macOf(x.addr), Remote: true}
	if !d.inv.overlay() {
		return e
	}
	e.Provider = proxy.AddrOf(d.ips, proxy.FamilyOf(x.addr))
	if provider := d.inv.providerOf(x.addr); x.vip {
		e.MAC = d.inv.macs[e.Provider]
	} else if provider.IsValid() {
		e.Provider = provider
	}
	if x.addr == d.options.SourceVIP {
		e.Remote, e.Provider = false, netip.Addr{}
	}
	return e
}

// sourceVIP returns the address that endpoints on an overlay network see as their client: the
// source VIP, or this node's address if one of the endpoints is not a pod and so could not reply to
// the source VIP.
func (d *Dataplane) sourceVIP(f proxy.Family, to []proxy.Endpoint) netip.Addr {
	if !d.inv.overlay() {
		return netip.Addr{}
	}
	for _, e := range to {
		if provider := d.inv.providerOf(e.Addr.Addr()); !e.Local && (!provider.IsValid() || provider == e.Addr.Addr()) {
			return proxy.AddrOf(d.ips, f)
		}
	}
	return d.options.SourceVIP
}

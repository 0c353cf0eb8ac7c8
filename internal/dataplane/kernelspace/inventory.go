package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice/internal/kernel/hns"
	"sluice/internal/proxy"
)

// inventory is what HNS has, as far as we know.
type inventory struct {
	network        hns.Network
	subnets        map[netip.Prefix]netip.Addr // on an overlay network: the node of each remote subnet
	macs           map[netip.Addr]string       // on an overlay network: the MACs of this node's links, by their addresses
	endpoints      map[netip.Addr]endpoint     // of the network of the pods
	all            map[string]hns.Endpoint     // of all networks, by ID
	balancers      map[id]balancer
	strays         []string // IDs of our endpoints that cannot be used
	healthEndpoint string   // ID of the endpoint that answers health checks
}

type endpoint struct {
	id string
	hns.Endpoint
	ours bool // a service proxy created it
	vip  bool // packets to it are delivered to this node, as for a ClusterIP
}

type balancer struct {
	id string
	hns.LoadBalancer
	ours  bool
	inUse bool // at least one of its endpoints exists, on any network
}

func (i *inventory) overlay() bool { return strings.EqualFold(i.network.Type, "Overlay") }

// providerOf returns the address of the node that has an address of an overlay network; for a
// node's own address, that address. It returns the zero value if no node has it.
func (i *inventory) providerOf(a netip.Addr) netip.Addr {
	for n := a.BitLen(); n >= 0; n-- {
		if p, _ := a.Prefix(n); i.subnets[p].IsValid() {
			return i.subnets[p]
		}
	}
	return netip.Addr{}
}

// subnetsOf maps the remote subnets of a network, and the nodes that have them, to the nodes.
func subnetsOf(n hns.Network) map[netip.Prefix]netip.Addr {
	all := map[netip.Prefix]netip.Addr{}
	for _, s := range n.Remote {
		all[s.Prefix.Masked()], all[netip.PrefixFrom(s.Provider, s.Provider.BitLen())] = s.Provider, s.Provider
	}
	return all
}

// readAll lists everything that HNS has.
func (d *Dataplane) readAll(ctx context.Context) error {
	d.op.listedAll = true
	adopted := map[string]bool{}
	for _, b := range d.inv.balancers {
		adopted[b.id] = b.ours
	}
	if err := d.readNetwork(ctx); err != nil {
		return err
	}
	d.inv.macs = map[netip.Addr]string{}
	if d.inv.overlay() {
		macs, err := d.links()
		if err != nil {
			return fmt.Errorf("list this node's links: %w", err)
		}
		for a, mac := range macs {
			d.inv.macs[a] = plainMAC(mac)
		}
	}
	if err := d.readEndpoints(ctx); err != nil {
		return err
	}
	balancers, err := d.service.LoadBalancers(ctx)
	if err == nil {
		d.recordBalancers(balancers, adopted)
	}
	return err
}

// readNetwork reads the network of the pods and its subnets.
func (d *Dataplane) readNetwork(ctx context.Context) error {
	d.op.readNetwork = true
	if d.options.Network == "" {
		return errors.New("the name of the HNS network of the pods is not set: use --network-name or the environment variable KUBE_NETWORK")
	}
	n, err := d.service.Network(ctx, d.options.Network)
	switch had := d.inv.network.ID; {
	case errors.Is(err, hns.ErrNotFound):
		return fmt.Errorf("%w: check that the network plugin is installed and --network-name is right", err)
	case err == nil && had != "" && had != n.ID:
		return errReplaced
	case err == nil:
		d.inv.network, d.inv.subnets = n, subnetsOf(n)
	}
	return err
}

// readEndpoints lists the endpoints. Some versions of Windows keep a remote endpoint beside that of
// a pod that has its address now. Apply cannot remove it, so errStray asks for a Sync, once for
// each endpoint that HNS keeps.
func (d *Dataplane) readEndpoints(ctx context.Context) (err error) {
	d.op.listedEndpoints = true
	before := d.inv.strays
	d.inv.endpoints, d.inv.strays, d.inv.healthEndpoint = map[netip.Addr]endpoint{}, nil, ""
	if d.inv.all, err = d.service.Endpoints(ctx); err != nil {
		return err
	}
	for x, e := range d.inv.all {
		if d.options.ForwardHealthCheckVIP && e.Name == d.options.RootEndpoint {
			d.inv.healthEndpoint = x
		}
		if e.Network != d.inv.network.ID {
			continue
		}
		now := d.classify(x, e)
		for _, a := range e.Addrs {
			one, other := now, d.inv.endpoints[a]
			if one.Remote && other.id != "" {
				one, other = other, one
			}
			if d.inv.endpoints[a] = one; other.ours {
				d.inv.strays = append(d.inv.strays, other.id)
				if !d.op.listedAll && !slices.Contains(before, other.id) {
					err = errStray
				}
			}
		}
	}
	return err
}

// classify returns an endpoint with what we know about it. A service proxy created it if its MAC is
// derived from its address, or is a MAC of this node, as for ClusterIPs and the source VIP on an
// overlay network.
func (d *Dataplane) classify(x string, e hns.Endpoint) endpoint {
	e.MAC = plainMAC(e.MAC)
	if len(e.Addrs) != 1 || !e.Remote && e.Addrs[0] != d.options.SourceVIP {
		return endpoint{id: x, Endpoint: e}
	}
	vip := slices.Contains(slices.Collect(maps.Values(d.inv.macs)), e.MAC)
	return endpoint{x, e, vip || e.MAC == macOf(e.Addrs[0]), vip}
}

// recordBalancers records load balancers. A load balancer is ours if it has an endpoint on the
// network of the pods, or the one that answers health checks, or if it was ours before. If several
// have the same frontend, one of ours is used, and our others are strays.
func (d *Dataplane) recordBalancers(all map[string]hns.LoadBalancer, adopted map[string]bool) {
	d.inv.balancers = map[id]balancer{}
	for x, l := range all {
		if l.Protocol == 0 {
			continue
		}
		at := id{addr: l.VIP, protocol: proxy.Protocol(l.Protocol), port: l.ExternalPort}
		if l.Family6 {
			at.family = proxy.IPv6
		}
		b := balancer{id: x, LoadBalancer: l, ours: adopted[x]}
		slices.Sort(b.Endpoints)
		for _, e := range l.Endpoints {
			at.check = d.inv.healthEndpoint != "" && e == d.inv.healthEndpoint
			on, there := d.inv.all[e]
			b.inUse = b.inUse || there
			b.ours = b.ours || at.check || there && on.Network == d.inv.network.ID
		}
		had, taken := d.inv.balancers[at]
		if b.ours && had.ours {
			at.stray = x
		}
		if b.ours || !taken {
			d.inv.balancers[at] = b
		}
	}
}

// listOurs passes our objects to have. Their values are not compared here, but when they are
// written.
func (d *Dataplane) listOurs(have func(id, value)) {
	for _, x := range d.inv.strays {
		have(id{stray: x}, value{listed: true})
	}
	for a, e := range d.inv.endpoints {
		if e.ours {
			have(id{addr: a, vip: e.vip}, value{listed: true})
		}
	}
	for x, b := range d.inv.balancers {
		if b.ours {
			have(x, value{listed: true})
		}
	}
}

// macOf returns the MAC of a remote endpoint, as kube-proxy derives it. HNS distinguishes endpoints
// by their MACs; these are never sent.
func macOf(a netip.Addr) string {
	b := a.As16()
	if a.Unmap().Is6() {
		slices.Reverse(b[12:])
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[12], b[13], b[14], b[15])
}

// plainMAC returns a MAC in the notation of macOf.
func plainMAC(mac string) string { return strings.ToLower(strings.ReplaceAll(mac, ":", "-")) }

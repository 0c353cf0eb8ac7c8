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

// inventory is what HNS has.
type inventory struct {
	network   hns.Network
	subnets   map[netip.Prefix]netip.Addr // the nodes where other addresses are, on an overlay network
	macs      map[netip.Addr]string       // of this node's links, by their addresses; on an overlay network only
	endpoints map[netip.Addr]endpoint     // of the network
	all       map[string]hns.Endpoint     // of all networks
	balancers map[id]balancer
	strays    []string // endpoints of ours that cannot be used
	root      string   // the endpoint where health checks are answered
}

type endpoint struct {
	id string
	hns.Endpoint
	ours bool // a service proxy made it
	vip  bool // it leads to this node, as those of ClusterIPs do
}

type balancer struct {
	id string
	hns.LoadBalancer
	ours bool
	used bool // an endpoint of it is there, on whatever network
}

func (i *inventory) overlay() bool { return strings.EqualFold(i.network.Type, "Overlay") }

// providerOf returns the node at which an address of another node is; a node is at
// itself. Invalid: it is nowhere.
func (i *inventory) providerOf(a netip.Addr) netip.Addr {
	for n := a.BitLen(); n >= 0; n-- {
		if p, _ := a.Prefix(n); i.subnets[p].IsValid() {
			return i.subnets[p]
		}
	}
	return netip.Addr{}
}

// subnetsOf returns where the addresses of a network are.
func subnetsOf(n hns.Network) map[netip.Prefix]netip.Addr {
	all := map[netip.Prefix]netip.Addr{}
	for _, s := range n.Remote {
		all[s.Prefix.Masked()], all[netip.PrefixFrom(s.Provider, s.Provider.BitLen())] = s.Provider, s.Provider
	}
	return all
}

// read lists everything there is.
func (d *Dataplane) read(ctx context.Context) error {
	d.turn.read = true
	known := map[string]bool{}
	for _, b := range d.has.balancers {
		known[b.id] = b.ours
	}
	if err := d.learnSubnets(ctx); err != nil {
		return err
	}
	d.has.macs = map[netip.Addr]string{}
	if d.has.overlay() {
		macs, err := d.links()
		if err != nil {
			return fmt.Errorf("list this node's links: %w", err)
		}
		for a, mac := range macs {
			d.has.macs[a] = plainMAC(mac)
		}
	}
	if err := d.readEndpoints(ctx); err != nil {
		return err
	}
	balancers, err := d.service.LoadBalancers(ctx)
	if err == nil {
		d.sortBalancers(balancers, known)
	}
	return err
}

// learnSubnets reads the network.
func (d *Dataplane) learnSubnets(ctx context.Context) error {
	d.turn.learned = true
	if d.options.Network == "" {
		return errors.New("the HNS network of the pods is not known: set --network-name, or variable KUBE_NETWORK")
	}
	n, err := d.service.Network(ctx, d.options.Network)
	switch had := d.has.network.ID; {
	case errors.Is(err, hns.ErrNotFound):
		return fmt.Errorf("%w: is the network plugin installed, and --network-name right?", err)
	case err == nil && had != "" && had != n.ID:
		return errReplaced
	case err == nil:
		d.has.network, d.has.subnets = n, subnetsOf(n)
	}
	return err
}

// readEndpoints notes the endpoints of the network. Versions of Windows leave a
// remote endpoint beside the one of a pod that has its address now. An Apply cannot
// remove it: errStray asks for a Sync, once for each that HNS keeps.
func (d *Dataplane) readEndpoints(ctx context.Context) (err error) {
	d.turn.listed = true
	before := d.has.strays
	d.has.endpoints, d.has.strays, d.has.root = map[netip.Addr]endpoint{}, nil, ""
	if d.has.all, err = d.service.Endpoints(ctx); err != nil {
		return err
	}
	for x, e := range d.has.all {
		if d.options.ForwardHealthCheckVIP && e.Name == d.options.RootEndpoint {
			d.has.root = x
		}
		if e.Network != d.has.network.ID {
			continue
		}
		now := d.known(x, e)
		for _, a := range e.Addrs {
			one, other := now, d.has.endpoints[a]
			if one.Remote && other.id != "" {
				one, other = other, one
			}
			if d.has.endpoints[a] = one; other.ours {
				d.has.strays = append(d.has.strays, other.id)
				if !d.turn.read && !slices.Contains(before, other.id) {
					err = errStray
				}
			}
		}
	}
	return err
}

// known returns an endpoint as it is noted. A service proxy made it if its MAC is
// made of its address, or is this node's, as those of ClusterIPs and of the source
// VIP have it on an overlay network.
func (d *Dataplane) known(x string, e hns.Endpoint) endpoint {
	e.MAC = plainMAC(e.MAC)
	if len(e.Addrs) != 1 || !e.Remote && e.Addrs[0] != d.options.SourceVIP {
		return endpoint{id: x, Endpoint: e}
	}
	vip := slices.Contains(slices.Collect(maps.Values(d.has.macs)), e.MAC)
	return endpoint{x, e, vip || e.MAC == macOf(e.Addrs[0]), vip}
}

// sortBalancers notes load balancers. Those are ours that have an endpoint on the
// network of the pods, or where health checks are answered, and those that are
// known from before. Of several with one frontend one of ours counts, and our others
// are strays.
func (d *Dataplane) sortBalancers(all map[string]hns.LoadBalancer, known map[string]bool) {
	d.has.balancers = map[id]balancer{}
	for x, l := range all {
		if l.Protocol == 0 {
			continue
		}
		at := id{addr: l.VIP, protocol: proxy.Protocol(l.Protocol), port: l.ExternalPort}
		if l.Family6 {
			at.family = proxy.IPv6
		}
		b := balancer{id: x, LoadBalancer: l, ours: known[x]}
		slices.Sort(b.Endpoints)
		for _, e := range l.Endpoints {
			at.check = d.has.root != "" && e == d.has.root
			on, there := d.has.all[e]
			b.used = b.used || there
			b.ours = b.ours || at.check || there && on.Network == d.has.network.ID
		}
		had, taken := d.has.balancers[at]
		if b.ours && had.ours {
			at.stray = x
		}
		if b.ours || !taken {
			d.has.balancers[at] = b
		}
	}
}

// list gives what there is of ours. What is wanted of it is compared when it is
// written.
func (d *Dataplane) list(have func(id, value)) {
	for _, x := range d.has.strays {
		have(id{stray: x}, value{listed: true})
	}
	for a, e := range d.has.endpoints {
		if e.ours {
			have(id{addr: a, vip: e.vip}, value{listed: true})
		}
	}
	for x, b := range d.has.balancers {
		if b.ours {
			have(x, value{listed: true})
		}
	}
}

// macOf returns the MAC of a remote endpoint, as kube-proxy makes it: HNS tells
// endpoints apart by theirs, and none of these is ever sent.
func macOf(a netip.Addr) string {
	b := a.As16()
	if a.Unmap().Is6() {
		slices.Reverse(b[12:])
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[12], b[13], b[14], b[15])
}

// plainMAC returns a MAC as macOf writes it.
func plainMAC(mac string) string { return strings.ToLower(strings.ReplaceAll(mac, ":", "-")) }

package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice/internal/kernel/hns"
	"sluice/internal/proxy"
)

// inventory is what HNS has.
type inventory struct {
	network   hns.Network
	subnets   map[netip.Prefix]netip.Addr // where pods of other nodes are, on an overlay network
	bits      []int                       // the lengths of those prefixes
	nodes     map[netip.Addr]bool         // whose addresses are no pods'
	macs      map[netip.Addr]string       // of this node's links, by their addresses; on an overlay network only
	endpoints map[netip.Addr]endpoint     // of the network
	addrs     map[string][]netip.Addr     // theirs, by ID
	elsewhere map[string]bool             // endpoints of other networks
	balancers map[id]balancer             // ours, and those that others use
	strays    []string                    // endpoints of ours that cannot be used
	root      string                      // the endpoint where health checks are answered
}

type endpoint struct {
	id     string
	remote value
	ours   bool
}

type balancer struct {
	id string
	hns.LoadBalancer
	ours bool
	used bool         // an endpoint of it is there, on whatever network
	to   []netip.Addr // its endpoints; invalid: one that is gone
}

func (i *inventory) overlay() bool { return strings.EqualFold(i.network.Type, "Overlay") }

// providerOf returns the node at which an address of another node is.
func (i *inventory) providerOf(a netip.Addr) (netip.Addr, bool) {
	if i.nodes[a] {
		return a, true
	}
	for _, n := range i.bits {
		if p, err := a.Prefix(n); err == nil && i.subnets[p].IsValid() {
			return i.subnets[p], true
		}
	}
	return netip.Addr{}, false
}

// setNetwork takes over what is known of the network.
func (i *inventory) setNetwork(n hns.Network) {
	i.network, i.subnets, i.nodes, i.bits = n, map[netip.Prefix]netip.Addr{}, map[netip.Addr]bool{}, nil
	for _, s := range n.Remote {
		i.subnets[s.Prefix.Masked()], i.nodes[s.Provider] = s.Provider, true
		i.bits = append(i.bits, s.Prefix.Bits())
	}
	slices.Sort(i.bits)
	slices.Reverse(i.bits)
	i.bits = slices.Compact(i.bits)
}

// read lists everything there is on the network.
func (d *Dataplane) read(ctx context.Context) error {
	d.fresh = true
	n, err := d.findNetwork(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, b := range d.has.balancers {
		known[b.id] = b.ours
	}
	d.has = inventory{}
	d.has.setNetwork(n)
	if d.has.overlay() {
		if d.has.macs, err = d.links(); err != nil {
			return fmt.Errorf("list this node's links: %w", err)
		}
	}
	if err := d.readEndpoints(ctx); err != nil {
		return err
	}
	balancers, err := d.service.LoadBalancers(ctx)
	d.sortBalancers(balancers, known)
	return err
}

func (d *Dataplane) readEndpoints(ctx context.Context) error {
	d.listed = true
	all, err := d.service.Endpoints(ctx)
	if err == nil {
		d.sortEndpoints(all)
	}
	return err
}

func (d *Dataplane) findNetwork(ctx context.Context) (hns.Network, error) {
	if d.options.Network == "" {
		return hns.Network{}, errNoNetworkName
	}
	n, err := d.service.Network(ctx, d.options.Network)
	if errors.Is(err, hns.ErrNotFound) {
		return n, fmt.Errorf("%w: is the network plugin installed, and --network-name right?", err)
	}
	return n, err
}

// sortEndpoints notes the endpoints of the network. Versions of Windows leave a
// remote endpoint beside the one of a pod that has its address now.
func (d *Dataplane) sortEndpoints(all map[string]hns.Endpoint) {
	d.has.endpoints, d.has.addrs, d.has.elsewhere = map[netip.Addr]endpoint{}, map[string][]netip.Addr{}, map[string]bool{}
	d.has.strays, d.has.root = nil, ""
	pods := map[netip.Addr]bool{}
	for x, e := range all {
		if d.options.ForwardHealthCheckVIP && e.Name == d.options.RootEndpoint {
			d.has.root = x
		}
		if e.Network != d.has.network.ID {
			d.has.elsewhere[x] = true
			delete(all, x)
			continue
		}
		for _, a := range e.Addrs {
			pods[a] = pods[a] || !e.Remote
		}
	}
	for x, e := range all {
		ours := d.ours(e)
		if ours && (pods[e.Addrs[0]] || d.elsewhere(e) || d.has.endpoints[e.Addrs[0]].id != "") {
			d.has.strays = append(d.has.strays, x)
			continue
		}
		d.has.addrs[x] = e.Addrs
		for _, a := range e.Addrs {
			if !e.Remote || !pods[a] {
				d.has.endpoints[a] = endpoint{x, value{mac: plainMAC(e.MAC), provider: e.Provider}, ours}
			}
		}
	}
}

// ours reports whether a service proxy made an endpoint: its MAC is made of its
// address, or is this node's, as those of ClusterIPs have it on an overlay network.
func (d *Dataplane) ours(e hns.Endpoint) bool {
	return e.Remote && len(e.Addrs) == 1 && (sameMAC(e.MAC, macOf(e.Addrs[0])) || d.has.isHost(e.MAC))
}

// isHost reports whether a MAC is this node's.
func (i *inventory) isHost(mac string) bool {
	for _, m := range i.macs {
		if sameMAC(m, mac) {
			return true
		}
	}
	return false
}

// elsewhere reports whether a remote endpoint of ours is at another node than it
// is said to be.
func (d *Dataplane) elsewhere(e hns.Endpoint) bool {
	return e.Provider.IsValid() && sameMAC(e.MAC, macOf(e.Addrs[0])) && d.remote(e.Addrs[0]).provider != e.Provider
}

// sortBalancers notes load balancers. Those are ours that have an endpoint on the
// network of the pods, or where health checks are answered, and those that are
// known from before.
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
			b.ours = b.ours || at.check || d.has.addrs[e] != nil
			b.used = b.used || d.has.elsewhere[e]
			b.to = append(b.to, ofFamily(d.has.addrs[e], at.family))
		}
		slices.SortFunc(b.to, netip.Addr.Compare)
		d.has.balancers[at] = b
	}
}

func ofFamily(addrs []netip.Addr, f proxy.Family) netip.Addr {
	for _, a := range addrs {
		if proxy.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// list tells the differ what there is of ours.
func (d *Dataplane) list(_ context.Context, _ *proxy.State, have func(id, value)) (rest func() error, empty bool, err error) {
	for a, e := range d.has.endpoints {
		if e.ours {
			have(id{addr: a}, e.remote)
		}
	}
	for x, b := range d.has.balancers {
		if !b.ours {
			continue
		}
		v := value{to: b.to, port: b.InternalPort, source: b.SourceVIP, flags: b.Flags}
		if x.check {
			v.to = nil
		}
		have(x, v)
	}
	return nil, false, nil
}

// learnSubnets reads the network again if a row has an endpoint that is nowhere
// yet: its node may have come since.
func (d *Dataplane) learnSubnets(ctx context.Context, want *proxy.State, rows []proxy.PortKey) error {
	if !d.has.overlay() {
		return nil
	}
	for _, key := range rows {
		if want.Rows[key] == nil {
			continue
		}
		for _, e := range want.Rows[key].Cluster {
			_, known := d.has.providerOf(e.Addr.Addr())
			if _, there := d.has.endpoints[e.Addr.Addr()]; known || there || e.Local {
				continue
			}
			n, err := d.findNetwork(ctx)
			if err == nil && n.ID != d.has.network.ID {
				err = errReplaced
			}
			if err == nil {
				d.has.setNetwork(n)
			}
			return err
		}
	}
	return nil
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

func sameMAC(a, b string) bool { return plainMAC(a) == plainMAC(b) }

package kernelspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/hns"
	"sluice/internal/proxy"
)

// objects says what objects are to the differ.
func (d *Dataplane) objects() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: func(*proxy.State, func(id, value)) {},
		Row:      d.row,
		SameRows: func(a, b *proxy.Node) bool {
			return opens(a, proxy.IPv4) == opens(b, proxy.IPv4) && opens(a, proxy.IPv6) == opens(b, proxy.IPv6)
		},
		Same:    same,
		Sharing: sharing,
		Order:   func(_ *changes, c *change) differ.Order { return differ.Order{Rank: rank(c)} },
		Size:    func(*change) int { return 1 },
		Limit:   func() int { return math.MaxInt },
		List:    d.list,
		Write:   d.write,
	}
}

// sharing: rows share endpoints, and those of a Service its health check.
func sharing(x id) differ.Sharing {
	if x.protocol == 0 || x.check {
		return differ.Shared
	}
	return differ.Unshared
}

// rank has endpoints come before load balancers, and go after them.
func rank(c *change) int {
	switch {
	case c.ID.protocol != 0 && !c.Has:
		return 1
	case c.ID.protocol != 0:
		return 2
	case c.Has:
		return 0
	default:
		return 3
	}
}

// write carries out changes. What HNS refuses is set aside, so all other changes
// are made; an error says that HNS does not answer.
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	for _, c := range some {
		v := c.New
		if !c.Has {
			v = c.Old
		}
		if err := d.settle(ctx, c.ID, setAside{v, c.Has}); err != nil {
			return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
		}
	}
	return nil
}

// retry tries again what was set aside of some rows.
func (d *Dataplane) retry(ctx context.Context, rows []proxy.PortKey) error {
	for x, s := range d.aside {
		if _, due := slices.BinarySearchFunc(rows, s.row, proxy.ComparePortKeys); !due || d.tried[x] || x.protocol == 0 {
			continue
		}
		for _, a := range s.to {
			e := id{addr: a}
			if missing, ok := d.aside[e]; ok && !d.tried[e] {
				if err := d.settle(ctx, e, missing); err != nil {
					return err
				}
			}
		}
		if err := d.settle(ctx, x, s); err != nil {
			return err
		}
	}
	return nil
}

// settle brings one object to what is wanted, or sets it aside. An error is fatal.
func (d *Dataplane) settle(ctx context.Context, x id, s setAside) error {
	d.tried[x] = true
	err := d.bring(ctx, x, s)
	if again, failed := d.readAgain(ctx, err); failed != nil {
		return failed
	} else if again {
		err = d.bring(ctx, x, s)
	}
	switch {
	case err == nil:
		delete(d.aside, x)
		return nil
	case fatal(err):
		return err
	case x.protocol == 0 && !s.wanted:
		return nil // nothing depends on it, and the next Sync finds it
	case x.protocol != 0:
		d.rows[s.row] = errors.Join(d.rows[s.row], err)
	}
	d.aside[x] = s
	return nil
}

// readAgain reads what another program may have made or removed since, once: the
// endpoints, where a network plugin is to have made that of a pod, or everything.
func (d *Dataplane) readAgain(ctx context.Context, why error) (bool, error) {
	switch {
	case errors.Is(why, errNoEndpoint) && !d.listed:
		return true, d.readEndpoints(ctx)
	case !d.fresh && (errors.Is(why, hns.ErrNotFound) || errors.Is(why, hns.ErrExists)):
		before := d.has.network.ID
		err := d.read(ctx)
		if err == nil && d.has.network.ID != before {
			err = errReplaced
		}
		return true, err
	default:
		return false, nil
	}
}

// fatal reports whether HNS answers nothing at all.
func fatal(err error) bool {
	return errors.Is(err, hns.ErrNotRunning) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func (d *Dataplane) bring(ctx context.Context, x id, s setAside) error {
	switch {
	case x.protocol == 0 && s.wanted:
		return d.addEndpoint(ctx, x.addr, s.value)
	case x.protocol == 0:
		return d.dropEndpoint(ctx, x.addr)
	case s.wanted:
		return d.setBalancer(ctx, x, s.value)
	default:
		return d.dropBalancer(ctx, x)
	}
}

// addEndpoint makes a remote endpoint, unless something has its address.
func (d *Dataplane) addEndpoint(ctx context.Context, a netip.Addr, v value) error {
	if _, ok := d.has.endpoints[a]; ok {
		return nil
	}
	x, err := d.service.CreateEndpoint(ctx, hns.Endpoint{Network: d.has.network.ID, Addrs: []netip.Addr{a}, MAC: v.mac, Remote: true, Provider: v.provider})
	if err != nil {
		return err
	}
	d.has.endpoints[a] = endpoint{x, v, true}
	return nil
}

func (d *Dataplane) dropEndpoint(ctx context.Context, a netip.Addr) error {
	e, ok := d.has.endpoints[a]
	if !ok || !e.ours {
		return nil
	}
	if err := d.service.DeleteEndpoint(ctx, e.id); err != nil && !errors.Is(err, hns.ErrNotFound) {
		return err
	}
	delete(d.has.endpoints, a)
	return nil
}

// setBalancer makes a load balancer as it is wanted, with the endpoints that there
// are; without any it is none.
func (d *Dataplane) setBalancer(ctx context.Context, x id, v value) error {
	l, missing := d.load(x, v)
	had, there := d.has.balancers[x]
	if !had.ours && had.used && (v.flags&hns.ExternalVIP != 0 || x.check) { // ClusterIPs are nobody else's.
		return fmt.Errorf("%v is another program's: delete it (HNS ID %s), or change the Service", x, had.id)
	}
	if len(l.Endpoints) == 0 {
		return cmp.Or(d.dropBalancer(ctx, x), missing)
	}
	if there && equal(had.LoadBalancer, l) {
		return missing
	}
	now, err := d.change(ctx, x, had, l)
	if err != nil {
		return err
	}
	d.has.balancers[x] = balancer{id: now, LoadBalancer: l, ours: true}
	return missing
}

// load returns a load balancer, and which of its endpoints is not there.
func (d *Dataplane) load(x id, v value) (l hns.LoadBalancer, missing error) {
	l = hns.LoadBalancer{
		VIP: x.addr, Family6: x.family == proxy.IPv6, Protocol: uint8(x.protocol), ExternalPort: x.port, InternalPort: v.port,
		SourceVIP: v.source, Flags: v.flags,
	}
	for _, a := range v.to {
		if e, ok := d.has.endpoints[a]; ok {
			l.Endpoints = append(l.Endpoints, e.id)
		} else if missing == nil {
			missing = fmt.Errorf("%w %v on network %s", errNoEndpoint, a, d.has.network.Name)
		}
	}
	if x.check && d.has.root != "" {
		l.Endpoints = append(l.Endpoints, d.has.root)
	} else if x.check {
		missing = fmt.Errorf("%w %s, where health checks are answered", errNoEndpoint, d.options.RootEndpoint)
	}
	slices.Sort(l.Endpoints)
	l.Endpoints = slices.Compact(l.Endpoints)
	return l, missing
}

// errNoEndpoint says what a load balancer lacks, errReplaced that all is lost.
var (
	errNoEndpoint = errors.New("no HNS endpoint")
	errReplaced   = errors.New("the HNS network of the pods was replaced")
)

// equal compares load balancers of one frontend.
func equal(a, b hns.LoadBalancer) bool {
	return slices.Equal(a.Endpoints, b.Endpoints) && a.InternalPort == b.InternalPort && a.SourceVIP == b.SourceVIP && a.Flags == b.Flags
}

// change makes a load balancer, or makes another of one that is there and returns
// its ID. Where HNS cannot change one, or not in that way, there is none between
// two calls.
func (d *Dataplane) change(ctx context.Context, x id, had balancer, l hns.LoadBalancer) (string, error) {
	if had.id != "" && d.features.ModifyLoadBalancer && had.Flags == l.Flags {
		return had.id, d.service.UpdateLoadBalancer(ctx, had.id, l)
	}
	if had.id != "" {
		if err := d.service.DeleteLoadBalancer(ctx, had.id); err != nil && !errors.Is(err, hns.ErrNotFound) {
			return "", err
		}
		delete(d.has.balancers, x)
	}
	return d.service.CreateLoadBalancer(ctx, l)
}

func (d *Dataplane) dropBalancer(ctx context.Context, x id) error {
	b := d.has.balancers[x]
	if !b.ours {
		return nil
	}
	if err := d.service.DeleteLoadBalancer(ctx, b.id); err != nil && !errors.Is(err, hns.ErrNotFound) {
		return err
	}
	delete(d.has.balancers, x)
	return nil
}

// ensureSource makes the endpoint of the source VIP on an overlay network.
func (d *Dataplane) ensureSource(ctx context.Context) error {
	if !d.has.overlay() {
		return nil
	}
	a := d.options.SourceVIP
	if err := overlayProblem(d.features, a); err != nil {
		return err
	}
	if _, ok := d.has.endpoints[a]; ok {
		return nil
	}
	v := d.host(proxy.FamilyOf(a))
	if v.mac == "" {
		return fmt.Errorf("the address of this node (%v) is not known, or no link has it: an overlay network needs both", v.provider)
	}
	x, err := d.service.CreateEndpoint(ctx, hns.Endpoint{Network: d.has.network.ID, Addrs: []netip.Addr{a}, MAC: v.mac})
	if err != nil {
		return fmt.Errorf("create the endpoint of source VIP %v: %w", a, err)
	}
	d.has.endpoints[a] = endpoint{id: x}
	return nil
}

// overlayProblem says why an overlay network cannot be used; nil: it can.
func overlayProblem(f hns.Features, source netip.Addr) error {
	switch {
	case !f.RemoteSubnet:
		return errors.New("this version of Windows has no overlay networks for service proxies")
	case !source.IsValid():
		return errors.New("an overlay network needs --source-vip, an address of it that no pod has")
	default:
		return nil
	}
}

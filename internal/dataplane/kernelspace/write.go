package kernelspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/hns"
	"sluice/internal/proxy"
)

func (d *Dataplane) objects() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: func(_ *proxy.State, add func(id, value)) {
			if d.has.overlay() {
				add(id{addr: d.options.SourceVIP, vip: true}, value{})
			}
		},
		Row: d.row,
		SameRows: func(a, b *proxy.Node) bool {
			return opens(a, proxy.IPv4) == opens(b, proxy.IPv4) && opens(a, proxy.IPv6) == opens(b, proxy.IPv6)
		},
		Same:    func(a, b value) bool { return reflect.DeepEqual(a, b) },
		Sharing: sharing,
		Order:   func(_ *changes, c *change) differ.Order { return differ.Order{Rank: rank(c)} },
		Size:    func(*change) int { return 1 },
		Limit:   func() int { return math.MaxInt },
		List: func(_ context.Context, _ *proxy.State, have func(id, value)) (func() error, bool, error) {
			d.list(have)
			return nil, false, nil
		},
		Write: d.write,
	}
}

// sharing: rows share endpoints, and those of a Service its health check.
func sharing(x id) differ.Sharing {
	if x.protocol == 0 || x.check {
		return differ.Shared
	}
	return differ.Unshared
}

// byRank has endpoints come before load balancers, those of ClusterIPs first, and go
// after them, but for strays: others come in their place.
func byRank(a, b *change) int { return cmp.Compare(rank(a), rank(b)) }

func rank(c *change) int {
	switch balances := c.ID.protocol != 0; {
	case c.ID.stray != "":
		return -1
	case c.Has && c.ID.vip:
		return 0
	case c.Has && !balances:
		return 1
	case balances && !c.Has:
		return 2
	case balances:
		return 3
	default:
		return 4
	}
}

// write carries out changes. What HNS refuses is set aside, so all other changes
// are made; an error says that HNS does not answer.
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	for _, c := range some {
		if err := d.settle(ctx, *c); err != nil {
			return err
		}
	}
	return nil
}

// retry tries again what was set aside of some rows, and the endpoints that it needs.
// What a Sync could not remove is of no row, and always tried again.
func (d *Dataplane) retry(ctx context.Context, rows []proxy.PortKey) error {
	var again []*change
	for x, c := range d.aside {
		if _, due := slices.BinarySearchFunc(rows, rowOf(c), proxy.ComparePortKeys); !due && rowOf(c) != (proxy.PortKey{}) || d.turn.tried[x] {
			continue
		}
		for _, e := range d.needs(x, c.New) {
			if c.Has && !d.turn.tried[e] {
				again = append(again, &change{ID: e, Has: true})
			}
		}
		again = append(again, &c)
	}
	slices.SortFunc(again, byRank)
	return d.write(ctx, again)
}

func rowOf(c change) proxy.PortKey { return cmp.Or(c.New.row, c.Old.row) }

// settle brings one object to what is wanted, or sets a load balancer aside. An error
// says that HNS does not answer, or has not what it was left with.
func (d *Dataplane) settle(ctx context.Context, c change) error {
	d.turn.tried[c.ID] = true
	err := d.bring(ctx, c)
	if errors.Is(err, errNoEndpoint) && !d.turn.listed { // a network plugin may have made it since
		if err := d.readEndpoints(ctx); err != nil {
			return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
		}
		err = d.bring(ctx, c)
	}
	exists := errors.Is(err, hns.ErrExists)
	if d.turn.read && exists {
		d.unlisted[c.ID] = true
	}
	switch {
	case err == nil:
		delete(d.aside, c.ID)
		delete(d.unlisted, c.ID)
		return nil
	case fatal(err) || !d.turn.read && (errors.Is(err, hns.ErrNotFound) || exists && !d.unlisted[c.ID]):
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	case c.Has && c.ID.protocol == 0 && c.ID.addr == d.options.SourceVIP:
		return fmt.Errorf("create the endpoint of source VIP %v: %w", c.ID.addr, err)
	case c.ID.protocol == 0:
		return nil // load balancers tell what they lack, and what stays is found by the next Sync
	}
	d.turn.refused[rowOf(c)] = errors.Join(d.turn.refused[rowOf(c)], err)
	d.aside[c.ID] = c
	return nil
}

// fatal reports whether an error is about all that HNS has.
func fatal(err error) bool {
	return slices.ContainsFunc([]error{hns.ErrNotRunning, errReplaced, context.Canceled, context.DeadlineExceeded}, func(e error) bool { return errors.Is(err, e) })
}

func (d *Dataplane) bring(ctx context.Context, c change) error {
	switch {
	case c.ID.stray != "" && c.ID.protocol == 0:
		return removed(d.has.all, c.ID.stray, d.service.DeleteEndpoint(ctx, c.ID.stray))
	case c.ID.protocol == 0 && c.Has:
		return d.addEndpoint(ctx, c.ID)
	case c.ID.protocol == 0:
		return d.dropEndpoint(ctx, c.ID)
	case c.Has:
		return d.setBalancer(ctx, c.ID, c.New)
	default:
		return d.dropBalancer(ctx, c.ID)
	}
}

// addEndpoint makes an endpoint, unless another program has made one that has its
// address, or it is a ClusterIP's. One of ours that is not as wanted is replaced by a
// Sync only: load balancers may have it, and must get the other.
func (d *Dataplane) addEndpoint(ctx context.Context, x id) error {
	had, ok := d.has.endpoints[x.addr]
	if d.has.overlay() && !ok && !d.turn.learned && !d.has.providerOf(x.addr).IsValid() { // its node may have come since
		if err := d.learnSubnets(ctx); err != nil {
			return err
		}
	}
	e := d.endpoint(x)
	switch {
	case ok && !x.vip && !had.Remote && !d.turn.listed: // the pod may have left this node: list them
		return errNoEndpoint
	case ok && (!had.ours || had.vip && !x.vip || had.MAC == e.MAC && had.Provider == e.Provider):
		return nil
	case ok && !d.turn.read:
		return fmt.Errorf("%v: %w, made for something else", x, hns.ErrExists)
	case e.MAC == "":
		return fmt.Errorf("the address of this node (%v) is not known, or no link has it: an overlay network needs both", proxy.AddrOf(d.ips, proxy.FamilyOf(x.addr)))
	case ok:
		if err := removed(d.has.endpoints, x.addr, d.service.DeleteEndpoint(ctx, had.id)); err != nil {
			return err
		}
	}
	made, err := d.service.CreateEndpoint(ctx, e)
	if err == nil {
		d.has.endpoints[x.addr] = endpoint{made, e, true, x.vip}
	}
	return err
}

func (d *Dataplane) dropEndpoint(ctx context.Context, x id) error {
	if e := d.has.endpoints[x.addr]; e.ours && e.vip == x.vip {
		return removed(d.has.endpoints, x.addr, d.service.DeleteEndpoint(ctx, e.id))
	}
	return nil
}

// removed notes what HNS has no more. What was not there is removed, too.
func removed[K comparable, V any](from map[K]V, key K, err error) error {
	if err != nil && !errors.Is(err, hns.ErrNotFound) {
		return err
	}
	delete(from, key)
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
	if there && reflect.DeepEqual(had.LoadBalancer, l) {
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
		SourceVIP: d.source(x.family, v.to), Flags: v.flags,
	}
	lacks := func(why error, what any) {
		missing = cmp.Or(missing, fmt.Errorf("%w: %v on network %s", why, what, d.has.network.Name))
	}
	for _, e := range v.to {
		had, ok := d.has.endpoints[e.Addr.Addr()]
		switch {
		case !ok || e.Local && had.ours:
			lacks(errNoEndpoint, e.Addr.Addr())
		case had.vip:
			lacks(errClusterIP, e.Addr.Addr())
		default:
			l.Endpoints = append(l.Endpoints, had.id)
		}
	}
	for _, e := range d.needs(x, v) {
		if _, ok := d.has.endpoints[e.addr]; e.vip && !ok {
			lacks(errNoEndpoint, e.addr)
		}
	}
	switch {
	case x.check && d.has.root == "":
		missing = fmt.Errorf("%w: %s, where health checks are answered", errNoEndpoint, d.options.RootEndpoint)
	case x.check:
		l.Endpoints = []string{d.has.root}
	}
	slices.Sort(l.Endpoints)
	l.Endpoints = slices.Compact(l.Endpoints)
	return l, missing
}

// errNoEndpoint and errClusterIP say what a load balancer lacks, errReplaced that all
// is lost, and errStray that a Sync has something to remove.
var (
	errNoEndpoint = errors.New("no HNS endpoint")
	errClusterIP  = errors.New("a ClusterIP is no endpoint")
	errReplaced   = errors.New("the HNS network of the pods was replaced")
	errStray      = errors.New("a pod of this node has the address of a remote HNS endpoint")
)

// change makes a load balancer, or makes another of one that is there and returns
// its ID. Where HNS cannot change one, or not in that way, there is none between
// two calls.
func (d *Dataplane) change(ctx context.Context, x id, had balancer, l hns.LoadBalancer) (string, error) {
	if had.id != "" && d.features.ModifyLoadBalancer && !d.replaces && had.Flags == l.Flags {
		err := d.service.UpdateLoadBalancer(ctx, had.id, l)
		if d.replaces = errors.Is(err, hns.ErrUnsupported); !d.replaces {
			return had.id, err
		}
	}
	if had.id != "" {
		if err := d.deleteBalancer(ctx, x, had.id); err != nil {
			return "", err
		}
	}
	return d.service.CreateLoadBalancer(ctx, l)
}

func (d *Dataplane) dropBalancer(ctx context.Context, x id) error {
	if b := d.has.balancers[x]; b.ours {
		return d.deleteBalancer(ctx, x, b.id)
	}
	return nil
}

// deleteBalancer tries twice: Windows Server 2019 sometimes fails the first time.
func (d *Dataplane) deleteBalancer(ctx context.Context, x id, balancer string) error {
	if removed(d.has.balancers, x, d.service.DeleteLoadBalancer(ctx, balancer)) == nil {
		return nil
	}
	return removed(d.has.balancers, x, d.service.DeleteLoadBalancer(ctx, balancer))
}

// overlayProblem says why an overlay network cannot be used; nil: it can.
func (d *Dataplane) overlayProblem() error {
	switch {
	case !d.has.overlay():
		return nil
	case !d.features.RemoteSubnet:
		return errors.New("this version of Windows has no overlay networks for service proxies")
	case !d.options.SourceVIP.IsValid():
		return errors.New("an overlay network needs --source-vip, an address of it that no pod has")
	default:
		return nil
	}
}

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
			if d.inv.overlay() {
				add(id{addr: d.options.SourceVIP, vip: true}, value{})
			}
		},
		Row: d.row,
		SameRows: func(a, b *proxy.Node) bool {
			return nodePortsOnAll(a, proxy.IPv4) == nodePortsOnAll(b, proxy.IPv4) && nodePortsOnAll(a, proxy.IPv6) == nodePortsOnAll(b, proxy.IPv6)
		},
		Same:    func(a, b value) bool { return reflect.DeepEqual(a, b) },
		Sharing: sharing,
		Order:   func(_ *changes, c *change) differ.Order { return differ.Order{Rank: rank(c)} },
		Size:    func(*change) int { return 1 },
		Limit:   func() int { return math.MaxInt },
		List: func(_ context.Context, _ *proxy.State, have func(id, value)) (func() error, bool, error) {
			d.listOurs(have)
			return nil, false, nil
		},
		Write: d.write,
	}
}

// sharing returns whether rows share an object: they share endpoints, and those with the same
// load-balancer address what answers health checks there.
func sharing(x id) differ.Sharing {
	switch {
	case x.check:
		return differ.Contested
	case x.protocol == 0:
		return differ.Shared
	default:
		return differ.Unshared
	}
}

// byRank orders changes: strays are deleted first, because other objects take their place; then
// endpoints are created, those of ClusterIPs first; then load balancers are deleted and written;
// then endpoints are deleted.
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

// write makes changes. What HNS refuses is set aside, so that all other changes are made; an error
// means that a Sync is needed or HNS does not work at all.
func (d *Dataplane) write(ctx context.Context, all []*change) error {
	for _, c := range all {
		if err := d.applyOrSetAside(ctx, *c); err != nil {
			return err
		}
	}
	return nil
}

// retry makes the changes again that were set aside for some rows, and those of the endpoints that
// they need. With leftovers, it also makes those of no row again, which remove what a Sync could
// not.
func (d *Dataplane) retry(ctx context.Context, changed *proxy.Changed) error {
	var again []*change
	for x, c := range d.setAside {
		_, due := slices.BinarySearchFunc(changed.Rows, rowOf(c), proxy.ComparePortKeys)
		if due = due || changed.Leftovers && rowOf(c) == (proxy.PortKey{}); !due || d.op.tried[x] {
			continue
		}
		for _, e := range d.requiredEndpoints(x, c.New) {
			if c.Has && !d.op.tried[e] {
				again = append(again, &change{ID: e, Has: true})
			}
		}
		again = append(again, &c)
	}
	slices.SortFunc(again, byRank)
	return d.write(ctx, again)
}

func rowOf(c change) proxy.PortKey { return cmp.Or(c.Row(), c.Old.row) }

// applyOrSetAside makes one change, or sets it aside if it is of a load balancer and HNS refuses
// it. An error means that HNS does not answer, or that its objects are not what we believe.
func (d *Dataplane) applyOrSetAside(ctx context.Context, c change) error {
	d.op.tried[c.ID] = true
	err := d.applyChange(ctx, c)
	if errors.Is(err, errNoEndpoint) && !d.op.listedEndpoints { // A network plugin may have created it since.
		if err := d.readEndpoints(ctx); err != nil {
			return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
		}
		err = d.applyChange(ctx, c)
	}
	exists := errors.Is(err, hns.ErrExists)
	if d.op.listedAll && exists {
		d.hidden[c.ID] = true
	}
	switch {
	case err == nil:
		delete(d.setAside, c.ID)
		delete(d.hidden, c.ID)
		return nil
	case fatal(err) || !d.op.listedAll && (errors.Is(err, hns.ErrNotFound) || exists && !d.hidden[c.ID]):
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	case c.Has && c.ID.protocol == 0 && c.ID.addr == d.options.SourceVIP:
		return fmt.Errorf("create the endpoint of source VIP %v: %w", c.ID.addr, err)
	case c.ID.protocol == 0:
		return nil // The load balancers that need it report what is missing; the next Sync finds one that was not deleted.
	}
	d.op.refused[rowOf(c)] = errors.Join(d.op.refused[rowOf(c)], err)
	d.setAside[c.ID] = c
	return nil
}

// fatal reports whether an error affects all objects, not just one.
func fatal(err error) bool {
	return slices.ContainsFunc([]error{hns.ErrNotRunning, errReplaced, context.Canceled, context.DeadlineExceeded}, func(e error) bool { return errors.Is(err, e) })
}

// applyChange makes one change in HNS, and records it in the inventory.
func (d *Dataplane) applyChange(ctx context.Context, c change) error {
	switch {
	case c.ID.stray != "" && c.ID.protocol == 0:
		return removed(d.inv.all, c.ID.stray, d.service.DeleteEndpoint(ctx, c.ID.stray))
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

// addEndpoint creates an endpoint, unless another program has created one with its address, or a
// ClusterIP has it. If an endpoint of ours differs from what is wanted, only a Sync replaces it:
// load balancers may use it, and must be changed as well.
func (d *Dataplane) addEndpoint(ctx context.Context, x id) error {
	had, ok := d.inv.endpoints[x.addr]
	if d.inv.overlay() && !ok && !d.op.readNetwork && !d.inv.providerOf(x.addr).IsValid() { // Its node may have been added since.
		if err := d.readNetwork(ctx); err != nil {
			return err
		}
	}
	e := d.endpoint(x)
	switch {
	case ok && !x.vip && !had.Remote && !d.op.listedEndpoints: // The pod may have left this node: list the endpoints.
		return errNoEndpoint
	case ok && (!had.ours || had.vip && !x.vip || had.MAC == e.MAC && had.Provider == e.Provider):
		return nil
	case ok && !d.op.listedAll:
		return fmt.Errorf("%v: %w, with other properties", x, hns.ErrExists)
	case e.MAC == "":
		return fmt.Errorf("the address of this node (%v) is not known, or no link has it: an overlay network needs both", proxy.AddrOf(d.ips, proxy.FamilyOf(x.addr)))
	case ok:
		if err := removed(d.inv.endpoints, x.addr, d.service.DeleteEndpoint(ctx, had.id)); err != nil {
			return err
		}
	}
	made, err := d.service.CreateEndpoint(ctx, e)
	if err == nil {
		d.inv.endpoints[x.addr] = endpoint{made, e, true, x.vip}
	}
	return err
}

func (d *Dataplane) dropEndpoint(ctx context.Context, x id) error {
	if e := d.inv.endpoints[x.addr]; e.ours && e.vip == x.vip {
		return removed(d.inv.endpoints, x.addr, d.service.DeleteEndpoint(ctx, e.id))
	}
	return nil
}

// removed records that HNS has deleted an object. It is no error if the object did not exist.
func removed[K comparable, V any](from map[K]V, key K, err error) error {
	if err != nil && !errors.Is(err, hns.ErrNotFound) {
		return err
	}
	delete(from, key)
	return nil
}

// setBalancer brings a load balancer to its wanted state, with those of its endpoints that exist;
// without any, it is deleted.
func (d *Dataplane) setBalancer(ctx context.Context, x id, v value) error {
	l, missing := d.loadBalancer(x, v)
	had, there := d.inv.balancers[x]
	if !had.ours && had.inUse && (v.flags&hns.ExternalVIP != 0 || x.check) { // nobody else uses ClusterIPs
		return fmt.Errorf("%v belongs to another program: delete it (HNS ID %s), or change the Service", x, had.id)
	}
	if len(l.Endpoints) == 0 {
		return cmp.Or(d.dropBalancer(ctx, x), missing)
	}
	if there && reflect.DeepEqual(had.LoadBalancer, l) {
		return missing
	}
	now, err := d.putBalancer(ctx, x, had, l)
	if err != nil {
		return err
	}
	d.inv.balancers[x] = balancer{id: now, LoadBalancer: l, ours: true}
	return missing
}

// loadBalancer returns a load balancer as it is to be, and an error if one of its endpoints is
// missing.
func (d *Dataplane) loadBalancer(x id, v value) (l hns.LoadBalancer, missing error) {
	l = hns.LoadBalancer{
		VIP: x.addr, Family6: x.family == proxy.IPv6, Protocol: uint8(x.protocol), ExternalPort: x.port, InternalPort: v.port,
		SourceVIP: d.sourceVIP(x.family, v.to), Flags: v.flags,
	}
	report := func(why error, what any) {
		missing = cmp.Or(missing, fmt.Errorf("%w: %v on network %s", why, what, d.inv.network.Name))
	}
	for _, e := range v.to {
		had, ok := d.inv.endpoints[e.Addr.Addr()]
		switch {
		case !ok || e.Local && had.ours:
			report(errNoEndpoint, e.Addr.Addr())
		case had.vip:
			report(errClusterIP, e.Addr.Addr())
		default:
			l.Endpoints = append(l.Endpoints, had.id)
		}
	}
	for _, e := range d.requiredEndpoints(x, v) {
		if _, ok := d.inv.endpoints[e.addr]; e.vip && !ok {
			report(errNoEndpoint, e.addr)
		}
	}
	switch {
	case x.check && d.inv.healthEndpoint == "":
		missing = fmt.Errorf("%w: %s, where health checks are answered", errNoEndpoint, d.options.RootEndpoint)
	case x.check:
		l.Endpoints = []string{d.inv.healthEndpoint}
	}
	slices.Sort(l.Endpoints)
	l.Endpoints = slices.Compact(l.Endpoints)
	return l, missing
}

// errNoEndpoint and errClusterIP are what a load balancer lacks. errReplaced means that all objects
// are lost, and errStray that a Sync has something to remove.
var (
	errNoEndpoint = errors.New("no HNS endpoint")
	errClusterIP  = errors.New("a ClusterIP cannot be an endpoint")
	errReplaced   = errors.New("the HNS network of the pods was replaced")
	errStray      = errors.New("a pod of this node has the address of a remote HNS endpoint")
)

// putBalancer creates or updates a load balancer, and returns its ID. If HNS cannot update it, or
// not in this way, it is deleted and created: between the two calls there is none.
func (d *Dataplane) putBalancer(ctx context.Context, x id, had balancer, l hns.LoadBalancer) (string, error) {
	if had.id != "" && d.features.ModifyLoadBalancer && !d.cannotUpdate && had.Flags == l.Flags {
		err := d.service.UpdateLoadBalancer(ctx, had.id, l)
		if d.cannotUpdate = errors.Is(err, hns.ErrUnsupported); !d.cannotUpdate {
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
	if b := d.inv.balancers[x]; b.ours {
		return d.deleteBalancer(ctx, x, b.id)
	}
	return nil
}

// deleteBalancer deletes a load balancer. It tries twice, because Windows Server 2019 sometimes
// fails the first time.
func (d *Dataplane) deleteBalancer(ctx context.Context, x id, balancer string) error {
	if removed(d.inv.balancers, x, d.service.DeleteLoadBalancer(ctx, balancer)) == nil {
		return nil
	}
	return removed(d.inv.balancers, x, d.service.DeleteLoadBalancer(ctx, balancer))
}

// overlayProblem returns why an overlay network cannot be used, or nil if it can or the network is
// no overlay.
func (d *Dataplane) overlayProblem() error {
	switch {
	case !d.inv.overlay():
		return nil
	case !d.features.RemoteSubnet:
		return errors.New("this version of Windows does not support service proxies on overlay networks")
	case !d.options.SourceVIP.IsValid():
		return errors.New("an overlay network needs --source-vip: set it to an address of the network that no pod has")
	default:
		return nil
	}
}

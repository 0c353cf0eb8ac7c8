package hnstest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"sluice/internal/kernel/hns"
)

// Fake is the service in memory. Unlike that of Windows it may be used by several goroutines.
type Fake struct {
	mu        sync.Mutex
	features  hns.Features
	networks  map[string]hns.Network
	endpoints map[string]hns.Endpoint
	balancers map[string]hns.LoadBalancer
	taken     map[frontend]string            // load balancers by frontend
	at        map[netip.Addr]map[string]bool // endpoints by address
	refuse    map[netip.Addr]error
	fail      error
	lastID    int
	count     Count
	done      []string
}

// Count is the number of calls of each method of a Fake, by name.
type Count map[string]int

// Full are the features of a current version of Windows.
var Full = hns.Features{DSR: true, DualStack: true, RemoteSubnet: true, SessionAffinity: true, ModifyLoadBalancer: true}

// ErrInvalid is returned for arguments that make no sense.
var ErrInvalid = errors.New("the parameter is incorrect")

// NewFake returns a service with some features and networks.
func NewFake(features hns.Features, networks ...hns.Network) *Fake {
	f := &Fake{
		features: features, networks: map[string]hns.Network{}, endpoints: map[string]hns.Endpoint{},
		balancers: map[string]hns.LoadBalancer{}, taken: map[frontend]string{}, at: map[netip.Addr]map[string]bool{}, refuse: map[netip.Addr]error{}, count: Count{},
	}
	for _, n := range networks {
		f.SetNetwork(n)
	}
	return f
}

// SetNetwork adds a network, or replaces the one with the same ID, and returns its ID. A network
// without an ID gets one.
func (f *Fake) SetNetwork(n hns.Network) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.ID == "" {
		n.ID = f.newID()
	}
	f.networks[n.ID] = n
	return n.ID
}

// RemoveNetwork removes a network and its endpoints. Load balancers stay.
func (f *Fake) RemoveNetwork(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.networks, id)
	for x, e := range f.endpoints {
		if e.Network == id {
			f.forget(x)
		}
	}
}

func (f *Fake) forget(endpoint string) {
	for _, a := range f.endpoints[endpoint].Addrs {
		delete(f.at[a], endpoint)
	}
	delete(f.endpoints, endpoint)
}

// Refuse makes all changes fail of endpoints with an address and of load balancers with it as VIP,
// until err is nil. The zero address stands for load balancers for all addresses of the node.
func (f *Fake) Refuse(addr netip.Addr, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse[addr] = err
}

// Fail makes all calls fail, until err is nil.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// Reset returns the calls since the last Reset, and the changes as text.
func (f *Fake) Reset() (Count, []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	count, done := f.count, f.done
	f.count, f.done = Count{}, nil
	return count, done
}

// State returns all objects except networks as text, sorted. Load balancers have addresses in place
// of IDs, so that the states of two services can be compared.
func (f *Fake) State() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, e := range f.endpoints {
		all = append(all, describeEndpoint(e))
	}
	for _, l := range f.balancers {
		all = append(all, f.describeLoadBalancer(l))
	}
	slices.Sort(all)
	return all
}

func (f *Fake) newID() string {
	f.lastID++
	return fmt.Sprintf("5e7e0000-0000-4000-8000-%012x", f.lastID)
}

// called counts a call and returns the error with which all calls fail.
func (f *Fake) called(ctx context.Context, method string) error {
	f.count[method]++
	return cmp.Or(f.fail, ctx.Err())
}

// refused returns the error with which changes of objects with these addresses fail.
func (f *Fake) refused(addrs ...netip.Addr) error {
	for _, a := range addrs {
		if err := f.refuse[a]; err != nil {
			return err
		}
	}
	return nil
}

// Features implements [hns.Interface].
func (f *Fake) Features(ctx context.Context) (hns.Features, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.features, f.called(ctx, "Features")
}

// Network implements [hns.Interface].
func (f *Fake) Network(ctx context.Context, name string) (hns.Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called(ctx, "Network"); err != nil {
		return hns.Network{}, err
	}
	for _, n := range f.networks {
		if n.Name == name {
			n.Remote = slices.Clone(n.Remote)
			return n, nil
		}
	}
	return hns.Network{}, fmt.Errorf("network %s: %w", name, hns.ErrNotFound)
}

// Endpoints implements [hns.Interface].
func (f *Fake) Endpoints(ctx context.Context) (map[string]hns.Endpoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called(ctx, "Endpoints"); err != nil {
		return nil, err
	}
	all := map[string]hns.Endpoint{}
	for id, e := range f.endpoints {
		all[id] = clone(e)
	}
	return all, nil
}

// CreateEndpoint implements [hns.Interface].
func (f *Fake) CreateEndpoint(ctx context.Context, e hns.Endpoint) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = append(f.done, "create "+describeEndpoint(e))
	if err := cmp.Or(f.called(ctx, "CreateEndpoint"), f.refused(e.Addrs...), f.checkEndpoint(e)); err != nil {
		return "", fmt.Errorf("create %s: %w", describeEndpoint(e), err)
	}
	id := f.newID()
	f.endpoints[id] = clone(e)
	for _, a := range e.Addrs {
		if f.at[a] == nil {
			f.at[a] = map[string]bool{}
		}
		f.at[a][id] = true
	}
	return id, nil
}

func (f *Fake) checkEndpoint(e hns.Endpoint) error {
	if _, ok := f.networks[e.Network]; !ok {
		return fmt.Errorf("network %s: %w", e.Network, hns.ErrNotFound)
	}
	if len(e.Addrs) == 0 {
		return ErrInvalid
	}
	for _, a := range e.Addrs {
		for other := range f.at[a] {
			if f.endpoints[other].Network == e.Network {
				return hns.ErrExists
			}
		}
	}
	return nil
}

// DeleteEndpoint implements [hns.Interface]. It deletes an endpoint whether or not it is used.
func (f *Fake) DeleteEndpoint(ctx context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.endpoints[id]
	f.done = append(f.done, "delete "+describeEndpoint(e))
	if err := cmp.Or(f.called(ctx, "DeleteEndpoint"), f.refused(e.Addrs...), found(ok)); err != nil {
		return fmt.Errorf("delete endpoint %s: %w", id, err)
	}
	f.forget(id)
	return nil
}

// LoadBalancers implements [hns.Interface].
func (f *Fake) LoadBalancers(ctx context.Context) (map[string]hns.LoadBalancer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.called(ctx, "LoadBalancers"); err != nil {
		return nil, err
	}
	all := map[string]hns.LoadBalancer{}
	for id, l := range f.balancers {
		l.Endpoints = slices.Clone(l.Endpoints)
		all[id] = l
	}
	return all, nil
}

// CreateLoadBalancer implements [hns.Interface].
func (f *Fake) CreateLoadBalancer(ctx context.Context, l hns.LoadBalancer) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = append(f.done, "create "+f.describeLoadBalancer(l))
	if err := cmp.Or(f.called(ctx, "CreateLoadBalancer"), f.refused(l.VIP), f.checkLoadBalancer("", l)); err != nil {
		return "", fmt.Errorf("create %s: %w", f.describeLoadBalancer(l), err)
	}
	id := f.newID()
	l.Endpoints = slices.Clone(l.Endpoints)
	f.balancers[id], f.taken[frontendOf(l)] = l, id
	return id, nil
}

// UpdateLoadBalancer implements [hns.Interface]. It replaces everything but the frontend.
func (f *Fake) UpdateLoadBalancer(ctx context.Context, id string, l hns.LoadBalancer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, ok := f.balancers[id]
	f.done = append(f.done, "update "+f.describeLoadBalancer(l))
	err := cmp.Or(f.called(ctx, "UpdateLoadBalancer"), f.refused(l.VIP), supported(f.features.ModifyLoadBalancer), found(ok), f.checkLoadBalancer(id, l))
	if err == nil && frontendOf(l) != frontendOf(old) {
		err = ErrInvalid
	}
	if err != nil {
		return fmt.Errorf("update %s: %w", f.describeLoadBalancer(l), err)
	}
	l.Endpoints = slices.Clone(l.Endpoints)
	f.balancers[id] = l
	return nil
}

// DeleteLoadBalancer implements [hns.Interface].
func (f *Fake) DeleteLoadBalancer(ctx context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := f.balancers[id]
	f.done = append(f.done, "delete "+f.describeLoadBalancer(l))
	if err := cmp.Or(f.called(ctx, "DeleteLoadBalancer"), f.refused(l.VIP), found(ok)); err != nil {
		return fmt.Errorf("delete load balancer %s: %w", id, err)
	}
	delete(f.balancers, id)
	delete(f.taken, frontendOf(l))
	return nil
}

// checkLoadBalancer returns why a load balancer cannot be created or updated as requested.
func (f *Fake) checkLoadBalancer(id string, l hns.LoadBalancer) error {
	if other, ok := f.taken[frontendOf(l)]; ok && other != id {
		return hns.ErrExists
	}
	for _, e := range l.Endpoints {
		if _, ok := f.endpoints[e]; !ok {
			return fmt.Errorf("endpoint %s: %w", e, hns.ErrNotFound)
		}
	}
	switch {
	case l.Protocol == 0 || l.ExternalPort == 0 || l.InternalPort == 0 || len(l.Endpoints) == 0,
		l.VIP.IsValid() && l.VIP.Is6() != l.Family6:
		return ErrInvalid
	case l.Family6 && !f.features.DualStack, l.Flags&hns.DSR != 0 && !f.features.DSR, l.Flags&hns.ByClient != 0 && !f.features.SessionAffinity:
		return hns.ErrUnsupported
	}
	return nil
}

// frontend is what must be unique among load balancers.
type frontend struct {
	vip      netip.Addr
	family6  bool
	protocol uint8
	port     uint16
}

func frontendOf(l hns.LoadBalancer) frontend {
	return frontend{l.VIP, l.Family6, l.Protocol, l.ExternalPort}
}

func found(ok bool) error {
	if !ok {
		return hns.ErrNotFound
	}
	return nil
}

func supported(ok bool) error {
	if !ok {
		return hns.ErrUnsupported
	}
	return nil
}

func clone(e hns.Endpoint) hns.Endpoint {
	e.Addrs = slices.Clone(e.Addrs)
	return e
}

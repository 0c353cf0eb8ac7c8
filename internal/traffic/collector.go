package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

const (
	// readEvery is the least time from one look at all flows to the next, and
	// restFactor how many times its own length such a look is followed by rest.
	readEvery  = time.Second
	restFactor = 30

	// readPatience is how long who asks waits for a kernel that is slow to answer.
	readPatience = 3 * time.Second

	// readTimeout ends a look that takes much longer than one at a million flows.
	readTimeout = time.Minute

	// takeEvery is the time from one look at ended flows to the next. The kernel
	// keeps more than 50,000 for us.
	takeEvery = 500 * time.Millisecond

	// addressesFor is how long the node's addresses are taken for known.
	addressesFor = 10 * time.Second
)

// DefaultMaxSeries is how many Service ports have series of their own.
const DefaultMaxSeries = 2000

type Settings struct {
	Flows      ct.Interface                   // the Collector's alone from now on; nil: connection tracking translates nothing
	Ends       ct.Ends                        // as well, nil with Flows
	Metered    proxy.Metered                  // what the mode counts; nil: nothing
	LocalAddrs func() ([]netip.Prefix, error) // the node's own

	Bytes     bool // are to be told, as flows and the mode tell them
	MaxSeries int  // of Service ports; the rest shares one
	Endpoints bool // series for each endpoint, too
}

// Collector counts. It is told by the engine what is in force; all its methods
// may be called by any goroutine.
type Collector struct {
	settings Settings
	inForce  chan struct{} // closed when rows are known
	lost     atomic.Uint64 // how often the kernel could not tell of ended flows
	shown    atomic.Pointer[shown]

	taking  sync.Mutex    // held while ended flows are taken
	reading chan struct{} // has a token while everything is counted
	next    time.Time     // when to count again
	samples map[sampleKey]tally
	read    bool // flows were counted at least once
	failed  bool // the last time; that was logged

	mu       sync.Mutex // held for moments only, since the engine waits for it
	index    index
	listed   time.Time // when the node's addresses were
	counted  time.Time // when everything was
	rows     map[proxy.PortKey]*row
	list     []*row // the same
	services map[proxy.ServicePortName]*service
	own      map[*series]bool // those of single services
	fold     series           // of all others
}

// sampleKey tells samples apart.
type sampleKey struct {
	frontend
	endpoint netip.AddrPort
	refused  proxy.Reason
}

// New returns a Collector that knows no row.
func New(s Settings) *Collector {
	c := &Collector{
		settings: s, inForce: make(chan struct{}), reading: make(chan struct{}, 1),
		index:    index{rows: map[frontend]*proxy.ServicePort{}},
		rows:     map[proxy.PortKey]*row{},
		services: map[proxy.ServicePortName]*service{},
		own:      map[*series]bool{},
		fold:     series{namespace: folded, name: folded, port: folded},
	}
	c.shown.Store(&shown{})
	return c
}

// Applied takes what a sync changed in the kernel. Its cost is that of the step.
func (c *Collector) Applied(node *proxy.Node, d *proxy.Delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index.node == nil {
		close(c.inForce)
	}
	c.index.node = node
	for _, sp := range d.Removes {
		c.index.remove(sp)
		c.drop(sp.Key)
	}
	for _, u := range d.Upserts {
		c.index.change(u)
		if r := c.rows[u.New.Key]; r != nil {
			r.become(u.New)
		}
	}
}

// Run takes flows that end until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	select {
	case <-c.inForce:
		c.reading <- struct{}{}
		c.refresh(ctx) // what flows have carried before is not for us to count
	case <-ctx.Done():
		return nil
	}
	if c.settings.Ends == nil {
		<-ctx.Done()
		return nil
	}
	failed := false
	for tick := time.NewTicker(takeEvery); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return nil
		case <-tick.C:
		}
		err := c.take()
		if err != nil && !failed {
			klog.FromContext(ctx).Error(err, "Cannot hear of connections that end, traffic is not counted well")
		}
		failed = err != nil
	}
}

// take counts flows that have ended.
func (c *Collector) take() error {
	c.taking.Lock()
	defer c.taking.Unlock()
	err := c.listAddresses(addressesFor)
	return errors.Join(err, c.settings.Ends.Take(func(f *ct.Flow) {
		if f == nil {
			c.lost.Add(1)
			return
		}
		c.count(f, true)
	}))
}

// count adds a flow to the meters of its row and endpoint, if it is a Service's.
// Zones are other programs'.
func (c *Collector) count(f *ct.Flow, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sp := c.index.find(proxy.Protocol(f.Protocol), f.Orig.Dst)
	if sp == nil || f.Zone != 0 {
		return
	}
	r, n := c.adopt(sp), ofFlow(f)
	for _, m := range [...]*meter{&r.meter, r.endpoint(f.Reply.Src)} {
		switch {
		case m == nil:
		case ended:
			m.ended.add(n)
		default:
			m.see(n, f)
		}
	}
}

// listAddresses lists the node's addresses, if that was long ago.
func (c *Collector) listAddresses(maxAge time.Duration) error {
	c.mu.Lock()
	known := time.Since(c.listed) < maxAge && c.index.local != nil
	c.mu.Unlock()
	if known {
		return nil
	}
	all, err := c.settings.LocalAddrs()
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	here := proxy.Outermost(all)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.local, c.listed = here, time.Now()
	return nil
}

// Close lets nobody count any more. It waits for a count that is under way, as long as
// who asks for one does.
func (c *Collector) Close() error {
	select {
	case c.reading <- struct{}{}:
	case <-time.After(readPatience):
	}
	if c.settings.Flows == nil {
		return nil
	}
	return errors.Join(c.settings.Flows.Close(), c.settings.Ends.Close())
}

// Refresh counts everything, unless that was done a moment ago. It does not wait for
// ever: who asks how things are is told what was counted last while the kernel does
// not answer. What was begun goes on for others when who asked has gone.
func (c *Collector) Refresh(ctx context.Context) {
	select {
	case <-c.inForce:
	default:
		return
	}
	ended := time.NewTimer(readPatience)
	defer ended.Stop()
	select {
	case c.reading <- struct{}{}:
	case <-ctx.Done():
		return
	case <-ended.C:
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		c.refresh(ctx)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	case <-ended.C:
	}
}

// refresh is Refresh of who has the token, and gives it back.
func (c *Collector) refresh(ctx context.Context) {
	defer func() { <-c.reading }()
	began := time.Now()
	if began.Before(c.next) {
		return
	}
	err := errors.Join(c.readFlows(ctx), c.readSamples(ctx))
	failed := err != nil && !errors.Is(ctx.Err(), context.Canceled) // else the process ends
	if failed && !c.failed {
		klog.FromContext(ctx).Error(err, "Cannot count traffic, what is shown may be old")
	}
	c.failed = failed
	c.show()
	c.next = time.Now().Add(max(readEvery, restFactor*time.Since(began)))
}

// readFlows counts the flows that live, and those that ended meanwhile.
func (c *Collector) readFlows(ctx context.Context) error {
	if c.settings.Flows == nil {
		return c.listAddresses(0)
	}
	if err := errors.Join(c.listAddresses(0), c.take()); err != nil {
		return err
	}
	seen := 0
	err := c.settings.Flows.Each(ctx, func() { c.each((*meter).begin) }, func(f *ct.Flow) {
		c.count(f, false)
		if seen++; seen%atOnce == 0 {
			runtime.Gosched()
		}
	})
	if err != nil {
		return err
	}
	if err := c.take(); err != nil {
		return err
	}
	c.each(func(m *meter) { m.settle(!c.read) })
	c.read = true
	return nil
}

func (c *Collector) each(f func(*meter)) {
	c.mu.Lock()
	all := slices.Clone(c.list)
	c.mu.Unlock()
	c.visit(all, func(r *row) {
		for _, m := range r.meters {
			f(m)
		}
	})
}

// atOnce is how many rows or flows are looked at before others have their turn: a
// sync may wait, and the process has one thread.
const atOnce = 256

// visit calls f for rows, some of which may have gone meanwhile.
func (c *Collector) visit(all []*row, f func(*row)) {
	for some := range slices.Chunk(all, atOnce) {
		c.mu.Lock()
		for _, r := range some {
			f(r)
		}
		c.mu.Unlock()
		runtime.Gosched()
	}
}

// readSamples counts what the mode has counted. What it had counted before the
// first time is not for us to tell.
func (c *Collector) readSamples(ctx context.Context) error {
	if c.settings.Metered == nil {
		return nil
	}
	var all []proxy.Sample
	if err := c.settings.Metered.Traffic(ctx, func(s proxy.Sample) { all = append(all, s) }); err != nil {
		return fmt.Errorf("read what the mode has counted: %w", err)
	}
	c.each(func(m *meter) { m.ownOpen = 0 })
	seen := make(map[sampleKey]tally, len(all))
	for i := range all {
		c.sample(&all[i], seen)
	}
	c.samples = seen
	return nil
}

func (c *Collector) sample(s *proxy.Sample, seen map[sampleKey]tally) {
	key, n := sampleKey{frontend{s.Frontend, s.Protocol}, s.Endpoint, s.Refused}, ofTraffic(&s.Traffic)
	before, twice := seen[key] // as a listing may have something that changes meanwhile
	if !twice {
		before = c.samples[key]
	}
	seen[key] = n
	grown := n.since(before)
	if c.samples == nil {
		grown = tally{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sp := c.index.find(s.Protocol, s.Frontend)
	if sp == nil || grown == (tally{}) && s.Active == 0 {
		return
	}
	r := c.adopt(sp)
	if !s.Endpoint.IsValid() {
		if i := slices.Index(reasons[:], s.Refused); i >= 0 {
			r.refused[i] += grown[packetsIn]
		}
		return
	}
	for _, m := range []*meter{&r.meter, r.endpoint(s.Endpoint)} {
		if m != nil {
			m.own.add(grown)
			m.ownOpen += s.Active
		}
	}
}

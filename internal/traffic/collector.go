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
	// Flows are dumped at most once in minReadInterval, and a dump is followed by a rest of
	// restFactor times its duration.
	minReadInterval = time.Second
	restFactor      = 30

	// refreshWait bounds how long a caller waits for a slow kernel.
	refreshWait = 3 * time.Second

	// readTimeout ends a dump that takes much longer than one of a million flows.
	readTimeout = time.Minute

	// takeInterval is how often events of ended flows are read. The kernel buffers more than 50,000
	// of them.
	takeInterval = 500 * time.Millisecond

	// maxAddressAge is how long a list of the node's addresses is used.
	maxAddressAge = 10 * time.Second
)

// DefaultMaxSeries is the default number of Service ports that have their own series.
const DefaultMaxSeries = 2000

type Settings struct {
	Flows      ct.Interface                   // used by the Collector only; nil if connection tracking translates nothing
	Ends       ct.Ends                        // used by the Collector only; nil if Flows is nil
	Metered    proxy.Metered                  // what the mode counts itself; nil if it counts nothing
	LocalAddrs func() ([]netip.Prefix, error) // the node's own addresses

	Bytes     bool // report bytes and packets
	Failures  bool // report failed connections; the mode or its flows must have them all
	MaxSeries int  // Service ports that have their own series; the others share one
	Endpoints bool // report each endpoint as well
}

// Collector counts traffic. The engine tells it which rows are in force. Its methods may be called
// concurrently.
type Collector struct {
	settings Settings
	inForce  chan struct{} // closed when the first rows are known
	lost     atomic.Uint64 // how often the kernel lost events of ended flows
	shown    atomic.Pointer[snapshot]

	taking sync.Mutex // held while events of ended flows are read

	reading chan struct{} // holds a token while everything is counted

	// Used by the holder of the token only.
	nextRead time.Time           // when to count again
	samples  map[sampleKey]tally // what the mode had counted at the last read; nil before the first
	hasRead  bool                // flows were counted at least once
	failed   bool                // the last count failed, which was logged

	mu           sync.Mutex // held only briefly, because the engine waits for it
	index        index
	listed       time.Time // when the node's addresses were listed
	counted      time.Time // when everything was counted
	rows         map[proxy.PortKey]*row
	list         []*row // the values of rows
	services     map[proxy.ServicePortName]*service
	ownSeries    map[*series]bool // of a single Service port each
	foldedSeries series           // shared by all others
}

// sampleKey identifies the samples of a mode that continue each other.
type sampleKey struct {
	frontend
	endpoint netip.AddrPort
	refused  proxy.Reason
}

// New returns a Collector without rows.
func New(s Settings) *Collector {
	c := &Collector{
		settings: s, inForce: make(chan struct{}), reading: make(chan struct{}, 1),
		index:        index{rows: map[frontend]*proxy.ServicePort{}},
		rows:         map[proxy.PortKey]*row{},
		services:     map[proxy.ServicePortName]*service{},
		ownSeries:    map[*series]bool{},
		foldedSeries: series{namespace: folded, name: folded, port: folded},
	}
	c.shown.Store(&snapshot{})
	return c
}

// Applied records what a sync changed in the kernel. Its cost is proportional to the change.
func (c *Collector) Applied(node *proxy.Node, d *proxy.Delta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index.node == nil {
		close(c.inForce)
	}
	c.index.node = node
	for _, sp := range d.Removes {
		c.index.remove(sp)
		c.removeRow(sp.Key)
	}
	for _, u := range d.Upserts {
		c.index.change(u)
		if r := c.rows[u.New.Key]; r != nil {
			r.setRow(u.New)
		}
	}
}

// Run counts flows that end, until ctx ends, and then returns nil.
func (c *Collector) Run(ctx context.Context) error {
	select {
	case <-c.inForce:
		c.reading <- struct{}{}
		c.refresh(ctx) // traffic from before the first read is not counted
	case <-ctx.Done():
		return nil
	}
	if c.settings.Ends == nil {
		<-ctx.Done()
		return nil
	}
	failed := false
	for tick := time.NewTicker(takeInterval); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return nil
		case <-tick.C:
		}
		err := c.take()
		if err != nil && !failed {
			klog.FromContext(ctx).Error(err, "Cannot read events of connections that end, traffic counts may be too low until this works again")
		}
		failed = err != nil
	}
}

// take counts the flows that have ended since the last call.
func (c *Collector) take() error {
	c.taking.Lock()
	defer c.taking.Unlock()
	err := c.listAddresses(maxAddressAge)
	return errors.Join(err, c.settings.Ends.Take(func(f *ct.Flow) {
		if f == nil {
			c.lost.Add(1)
			return
		}
		c.count(f, true)
	}))
}

// count adds a flow to the meters of its row and endpoint, if it belongs to a Service. Flows in
// another conntrack zone belong to other programs.
func (c *Collector) count(f *ct.Flow, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sp := c.index.find(proxy.Protocol(f.Protocol), f.Orig.Dst)
	if sp == nil || f.Zone != 0 {
		return
	}
	r, n := c.rowFor(sp), tallyOfFlow(f, ended)
	for _, m := range [...]*meter{&r.meter, r.endpoint(f.Reply.Src)} {
		switch {
		case m == nil:
		case ended:
			m.ended.add(n)
		default:
			m.addLive(n, f)
		}
	}
}

// listAddresses lists the node's addresses, unless the last list is younger than maxAge.
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
	local := proxy.Outermost(all)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index.local, c.listed = local, time.Now()
	return nil
}

// Close prevents further counts and closes the connections to the kernel. It waits for a count in
// progress, but not longer than Refresh does.
func (c *Collector) Close() error {
	select {
	case c.reading <- struct{}{}:
	case <-time.After(refreshWait):
	}
	if c.settings.Flows == nil {
		return nil
	}
	return errors.Join(c.settings.Flows.Close(), c.settings.Ends.Close())
}

// Refresh counts everything, unless that was done a moment ago. It waits for a slow kernel for a
// few seconds at most; until the kernel answers, the last counts remain visible. A count that has
// begun continues after its caller has gone, for the benefit of others.
func (c *Collector) Refresh(ctx context.Context) {
	select {
	case <-c.inForce:
	default:
		return
	}
	timeout := time.NewTimer(refreshWait)
	defer timeout.Stop()
	select {
	case c.reading <- struct{}{}:
	case <-ctx.Done():
		return
	case <-timeout.C:
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
	case <-timeout.C:
	}
}

// refresh counts everything, unless that was done a moment ago. The caller holds the token; refresh
// returns it.
func (c *Collector) refresh(ctx context.Context) {
	defer func() { <-c.reading }()
	began := time.Now()
	if began.Before(c.nextRead) {
		return
	}
	err := errors.Join(c.readFlows(ctx), c.readSamples(ctx))
	failed := err != nil && !errors.Is(ctx.Err(), context.Canceled) // a cancelled context means that the process ends
	if failed && !c.failed {
		klog.FromContext(ctx).Error(err, "Cannot count all traffic, metrics and status may show old counts")
	}
	c.failed = failed
	c.publish()
	c.nextRead = time.Now().Add(max(minReadInterval, restFactor*time.Since(began)))
}

// readFlows counts live flows, and those that end meanwhile.
func (c *Collector) readFlows(ctx context.Context) error {
	if c.settings.Flows == nil {
		return c.listAddresses(0)
	}
	if err := errors.Join(c.listAddresses(0), c.take()); err != nil {
		return err
	}
	seen := 0
	err := c.settings.Flows.Each(ctx, func() { c.each((*meter).beginDump) }, func(f *ct.Flow) {
		c.count(f, false)
		if seen++; seen%batchSize == 0 {
			runtime.Gosched()
		}
	})
	if err != nil {
		return err
	}
	if err := c.take(); err != nil {
		return err
	}
	c.each(func(m *meter) { m.finishDump(!c.hasRead) })
	c.hasRead = true
	return nil
}

// each calls f for the meters of all rows.
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

// batchSize is how many rows or flows are visited before other goroutines get a turn: a sync may be
// waiting, and the process may have a single thread.
const batchSize = 256

// visit calls f for each row, in batches under the lock. Some of the rows may have been removed
// meanwhile.
func (c *Collector) visit(all []*row, f func(*row)) {
	for batch := range slices.Chunk(all, batchSize) {
		c.mu.Lock()
		for _, r := range batch {
			f(r)
		}
		c.mu.Unlock()
		runtime.Gosched()
	}
}

// readSamples adds what the mode has counted since the last read. What it had counted before the
// first read is ignored.
func (c *Collector) readSamples(ctx context.Context) error {
	if c.settings.Metered == nil {
		return nil
	}
	var all []proxy.Sample
	if err := c.settings.Metered.Traffic(ctx, func(s proxy.Sample) { all = append(all, s) }); err != nil {
		return fmt.Errorf("read the mode's traffic counters: %w", err)
	}
	c.each(func(m *meter) { m.modeActive = 0 })
	seen := make(map[sampleKey]tally, len(all))
	for i := range all {
		c.sample(&all[i], seen)
	}
	c.samples = seen
	return nil
}

// sample adds the growth of one counter of the mode; seen collects the values of this read.
func (c *Collector) sample(s *proxy.Sample, seen map[sampleKey]tally) {
	key, n := sampleKey{frontend{s.Frontend, s.Protocol}, s.Endpoint, s.Refused}, tallyOfTraffic(&s.Traffic)
	before, twice := seen[key] // a listing may contain an object twice if it changes meanwhile
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
	r := c.rowFor(sp)
	if !s.Endpoint.IsValid() {
		if i := slices.Index(reasons[:], s.Refused); i >= 0 {
			r.refused[i] += grown[packetsIn]
		}
		return
	}
	for _, m := range []*meter{&r.meter, r.endpoint(s.Endpoint)} {
		if m != nil {
			m.mode.add(grown)
			m.modeActive += s.Active
		}
	}
}

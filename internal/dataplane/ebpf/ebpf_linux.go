package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
)

// lease is for how long programs act on sockets without word from the daemon.
// After that the rules serve alone, which give way to another proxy's.
const (
	lease   = time.Minute
	renew   = lease / 6
	restart = 10 * time.Second // after a daemon that has said that it ends
)

// Dataplane translates at sockets what it can, above rules that translate all.
type Dataplane struct {
	*nftables.Dataplane // the rules

	kernel *kernel
	node   uint64 // the cookie of the node's network namespace
	routes *netlink.Handle
	news   *nl.NetlinkSocket // of addresses and routes
	rested time.Time         // addresses and routes are not read before; of Run
	look   chan struct{}     // some UDP socket may be connected to an endpoint that is gone

	mu       sync.Mutex // Run works beside Sync and Apply
	differ   *differ.Differ[id, value]
	state    *proxy.Node // as in force; nil: not known
	host     *host       // as in force
	cidrs    []netip.Prefix
	moved    chan struct{} // what is in force of it is no more
	attached bool
	off      error                    // why sockets are left alone
	ids      map[proxy.PortKey]uint32 // the numbers of rows
	used     map[uint32]bool          // those that were there before
	lastID   uint32
	left     map[proxy.PortKey]bool // rows that are left to the rules, as in force
	leave    map[proxy.PortKey]bool // and as is to be
	there    entries                // in the maps
	writes   int                    // entries of rows that were written
	reads    int                    // and that were read one by one
	addrs    map[addrKey]uint32     // the node's, with their flags, as written
	bytes    bool                   // are to be counted

	untracking untracking

	counting sync.Mutex // several may ask
	accounts map[route]*account

	rowsLeft, serving, untracks atomic.Int32 // for metrics, which wait for nobody
}

// Open loads the programs, and connects to nf_tables and routes of the calling
// thread's network namespace. Sockets are as they were before the first Sync.
func Open(ctx context.Context, s mode.Settings) (*Dataplane, error) {
	return open(ctx, s, nil)
}

func open(ctx context.Context, s mode.Settings, limits map[string]uint32) (d *Dataplane, err error) {
	p, err := placesOf(s)
	if err != nil {
		return nil, err
	}
	d = &Dataplane{
		look: make(chan struct{}, 1), moved: make(chan struct{}, 1), host: &host{}, off: errors.New("nothing was written yet"), bytes: s.CountBytes,
		untracking: untracking{pods: s.EBPF.Untracked, may: make(chan struct{}, 1)},
	}
	d.lastID = rand.Uint32() // so that two daemons that write at once do not use the same numbers
	d.differ = differ.New(d.objects())
	var undo []func() error
	defer func() {
		for _, f := range slices.Backward(undo) {
			if err != nil {
				err = errors.Join(err, f())
			}
		}
	}()
	if d.node, err = ownCookie(); err != nil {
		return nil, err
	}
	if d.kernel, err = load(p, limits); err != nil {
		return nil, err
	}
	undo = append(undo, d.kernel.close)
	if d.routes, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	undo = append(undo, func() error { d.routes.Close(); return nil })
	d.news, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch addresses and routes: %w", err)
	}
	undo = append(undo, func() error { d.news.Close(); return nil })
	if len(d.untracking.pods) > 0 {
		if d.untracking.flows, err = mode.OpenFlows(); err != nil {
			return nil, err
		}
		undo = append(undo, d.untracking.flows.Close)
	}
	d.Dataplane, err = rules(s, d.untracked).Open(ctx, s)
	return d, err
}

// Close releases handles; programs, maps and rules stay in force. If nobody comes back
// soon, the rules serve alone what is new: who is next may be kube-proxy, which has no
// word for the programs.
func (d *Dataplane) Close() error {
	d.routes.Close()
	d.news.Close()
	var err error
	if d.untracking.flows != nil {
		err = d.untracking.flows.Close()
	}
	return errors.Join(err, d.locked(func() error { return d.allow(restart) }), d.Dataplane.Close(), d.kernel.close())
}

// Sync makes maps and rules right whatever was there before, and then has programs
// act. If only the maps cannot be had, the rules serve alone.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Maps that nobody reads yet are filled while the rules are written.
	fresh, written := d.kernel.fresh, make(chan error, 1)
	failed := d.syncHost(want)
	switch {
	case failed != nil:
		d.disable(ctx, failed)
	case fresh:
		go func() { written <- d.syncRows(ctx, want) }()
	default:
		if failed = d.syncRows(ctx, want); failed != nil {
			d.disable(ctx, failed)
		}
	}
	d.beginUntracked(ctx, want)
	refused, err := d.Dataplane.Sync(ctx, want)
	if fresh && failed == nil {
		if failed = <-written; failed != nil {
			d.disable(ctx, failed)
		}
	}
	if err != nil {
		return nil, d.without(ctx, err)
	}
	if d.hasPorts(); failed == nil {
		if failed = d.follow(ctx, want, refused); failed == nil {
			failed = d.enable(ctx)
		}
		if failed != nil {
			d.disable(ctx, failed)
		}
	}
	if d.mustSync() {
		return nil, fmt.Errorf("the rules serve alone: %w", d.off)
	}
	return refused, nil
}

// mustSync reports whether sockets are left alone, or are meant to be, for a reason
// that another Sync may find gone. That there is no room is none.
func (d *Dataplane) mustSync() bool { return d.off != nil && !errors.Is(d.off, errFull) }

// syncHost makes what maps have of the node right.
func (d *Dataplane) syncHost(want *proxy.State) error {
	h, err := readHost(d.routes, want.Node)
	if err != nil {
		return err
	}
	d.host, d.state, d.cidrs = h, want.Node, want.CIDRs
	d.left, d.leave = map[proxy.PortKey]bool{}, map[proxy.PortKey]bool{}
	d.rowsLeft.Store(0)
	if err := d.writeHost(h, want.Node); err != nil {
		return err
	}
	return d.forgetSpaces()
}

// syncRows makes the maps of rows right.
func (d *Dataplane) syncRows(ctx context.Context, want *proxy.State) error {
	d.differ.Forget() // All rows need room, those that have some, too.
	d.reserve(ctx, want, slices.Collect(maps.Keys(want.Rows)), entries{})
	refused, err := d.differ.Sync(ctx, want)
	if err == nil {
		err = d.retryRows(ctx, want, refused)
	}
	d.settleLeft(slices.Collect(maps.Keys(d.leave)))
	return err
}

// follow takes the rows from the sockets that the rules refuse.
func (d *Dataplane) follow(ctx context.Context, want *proxy.State, refused proxy.Refused) error {
	if len(refused) == 0 {
		return nil
	}
	_, err := d.differ.Apply(ctx, want.Without(refused), &proxy.Changed{Rows: slices.SortedFunc(maps.Keys(refused), proxy.ComparePortKeys)})
	return err
}

// Rewritten returns what the last Sync wrote, at sockets and of the rules. That it
// began or ended to track connections is no repair.
func (d *Dataplane) Rewritten() proxy.Rewritten {
	out := d.Dataplane.Rewritten().And(d.differ.Rewritten())
	if d.untracking.turned && len(out.Rows) == 0 {
		return proxy.Rewritten{}
	}
	return out
}

// Apply brings what changed to what is wanted, at sockets first.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.untracking.begun {
		if why := d.overlaps(want, slices.Values(changed.Rows)); why != "" {
			return nil, fmt.Errorf("%w: connections between pods are to be tracked: %s", proxy.ErrNeedSync, why)
		}
	}
	if d.off == nil {
		if err := d.applySockets(ctx, want, changed); err != nil {
			d.disable(ctx, err)
		}
	}
	refused, err := d.Dataplane.Apply(ctx, want, changed)
	if err != nil {
		return nil, d.without(ctx, err)
	}
	if d.off == nil {
		if err := d.follow(ctx, want, refused); err != nil {
			d.disable(ctx, err)
		}
	}
	if d.mustSync() {
		return nil, fmt.Errorf("%w: the rules serve alone: %w", proxy.ErrNeedSync, d.off)
	}
	return refused, nil
}

// without has the rules serve alone when they could not be written: sockets are not to
// lead where they do not. The error is the rules' own.
func (d *Dataplane) without(ctx context.Context, err error) error {
	if d.off == nil {
		d.disable(ctx, err)
	}
	if d.mustSync() {
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	return err
}

// applySockets brings the maps to what is wanted.
func (d *Dataplane) applySockets(ctx context.Context, want *proxy.State, changed *proxy.Changed) error {
	if changed.CIDRs && !slices.Equal(d.cidrs, want.CIDRs) {
		// It concerns endpoints within the ranges of Services, whose rows nobody has
		// listed: rare enough to compare all.
		if err := d.syncHost(want); err != nil {
			return err
		}
		return d.syncRows(ctx, want)
	}
	if changed.Node {
		h, err := readHost(d.routes, want.Node)
		if err == nil && !d.same(h) {
			err = fmt.Errorf("%w: the node's addresses count as others", proxy.ErrNeedSync)
		}
		if err == nil {
			err = d.writeHost(h, want.Node)
		}
		if d.state = want.Node; err == nil {
			err = d.forgetSpaces()
		}
		if err != nil {
			return err
		}
	}
	for _, key := range changed.Rows {
		if want.Rows[key] == nil {
			delete(d.leave, key)
		}
	}
	d.reserve(ctx, want, changed.Rows, d.there)
	refused, err := d.differ.Apply(ctx, want, changed)
	if err == nil {
		err = d.retryRows(ctx, want, refused)
	}
	d.settleLeft(changed.Rows)
	if slices.ContainsFunc(changed.Rows, func(k proxy.PortKey) bool { return k.Protocol == proxy.UDP }) {
		notify(d.look)
	}
	return err
}

// enable has programs act on sockets, also where another process has detached one,
// and count what they carry, before all.
func (d *Dataplane) enable(ctx context.Context) error {
	if err := d.enableMeter(); err != nil {
		klog.FromContext(ctx).Error(err, "Bytes of connections that are translated at sockets are not counted")
	}
	if err := d.kernel.attach(); err != nil {
		if !d.attached {
			err = errors.Join(err, d.kernel.stopMeter())
		}
		return err
	}
	d.attached, d.off = true, nil
	d.serving.Store(1)
	notify(d.look)
	return d.allow(lease)
}

func (d *Dataplane) enableMeter() error {
	if d.bytes {
		return d.kernel.meter()
	}
	return d.kernel.stopMeter()
}

// allow lets programs act for a while.
func (d *Dataplane) allow(period time.Duration) error {
	if d.off != nil {
		return nil
	}
	now, err := sinceBoot()
	if err != nil {
		return err
	}
	return d.kernel.allow(d.node, now+uint64(period))
}

// disable leaves sockets alone until the next Sync. Programs that cannot be told so
// go on by what the maps have, so that is to be tried again whatever the reason.
func (d *Dataplane) disable(ctx context.Context, why error) {
	d.differ.Forget()
	d.off = why
	d.serving.Store(0)
	log := klog.FromContext(ctx)
	log.Error(why, "Sockets are left alone, the rules serve all connections")
	if err := d.kernel.allow(0, 0); err != nil {
		log.Error(err, "Programs cannot be told so; their permission ends by itself", "after", lease)
		d.off = fmt.Errorf("%v; and programs cannot be told: %w", why, err)
	}
}

// Metrics returns what programs and rules count.
func (d *Dataplane) Metrics(ctx context.Context) []proxy.Metric {
	counted := func(name, help string, counters map[string]uint32) proxy.Metric {
		m := proxy.Metric{Name: name, Help: help, Grows: true, Read: func(yield func(float64, ...string)) {
			for protocol, c := range counters {
				if protocol == "" {
					yield(float64(d.kernel.counter(c)))
				} else {
					yield(float64(d.kernel.counter(c)), protocol)
				}
			}
		}}
		if counters[""] == 0 {
			m.Labels = []string{"protocol"}
		}
		return m
	}
	return append(d.Dataplane.Metrics(ctx),
		counted("ebpf_translated_total", "Connections that were translated at their socket", map[string]uint32{"TCP": 0, "UDP": 1}),
		counted("ebpf_cut_packets_total", "Packets of UDP sockets that are connected to an endpoint that is gone", map[string]uint32{"": 3}),
		proxy.Metric{Name: "ebpf_rows_left", Help: "Service ports that only the rules serve, as the maps have no room", Read: func(yield func(float64, ...string)) {
			yield(float64(d.rowsLeft.Load()))
		}},
		proxy.Metric{Name: "ebpf_sockets_served", Help: "1 if sockets are translated; 0: the rules serve alone", Read: func(yield func(float64, ...string)) {
			yield(float64(d.serving.Load()))
		}},
		proxy.Metric{Name: "ebpf_untracked", Help: "1 if connections between pods are not tracked", Read: func(yield func(float64, ...string)) {
			yield(float64(d.untracks.Load()))
		}})
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

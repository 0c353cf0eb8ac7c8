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

// The programs act only until their lease expires. After that the rules serve alone,
// which yield to those of another proxy.
const (
	lease           = time.Minute
	leaseRenewal    = lease / 6
	leaseAfterClose = 10 * time.Second // enough for a restart
)

// Dataplane translates connections at their sockets where it can, on top of rules that
// translate all of them.
type Dataplane struct {
	*nftables.Dataplane // the rules

	kernel       *kernel
	nodeCookie   uint64 // of the node's network namespace
	netlink      *netlink.Handle
	hostEvents   *nl.NetlinkSocket // changes of addresses and routes
	nextHostRead time.Time         // addresses and routes are not read again before; used by Run only
	checkStale   chan struct{}     // asks Run to look for UDP sockets whose endpoint is gone

	mu            sync.Mutex // Run works concurrently with Sync and Apply
	differ        *differ.Differ[id, value]
	node          *proxy.Node    // as in force; nil before the first Sync has read the host
	host          *host          // as in force
	cidrs         []netip.Prefix // of Services, as in force
	nextCIDRs     []netip.Prefix // the same, as the next write is to make it
	hostChanged   chan struct{}  // asks for a Sync, since rows depend on host
	hostMoved     bool           // rows or rules were not the same for the host that the last Sync read
	syncTook      time.Duration  // the last Sync
	attached      bool
	disabled      error                    // why the programs leave all sockets alone; nil if they act
	rowIDs        map[proxy.PortKey]uint32 // by which the maps refer to rows
	usedIDs       map[uint32]bool          // those that the maps had when they were listed
	lastID        uint32
	rulesOnly     map[proxy.PortKey]bool // rows without room in the maps, as in force
	nextRulesOnly map[proxy.PortKey]bool // the same, as the next write is to make it
	stored        entryCounts            // in the maps
	writes        int                    // entries of rows written, for tests
	reads         int                    // entries of rows read, for tests
	nodeAddrs     map[addrKey]uint32     // the node's addresses with their flags, as written
	countBytes    bool                   // from the settings

	untracking untracking

	trafficMu sync.Mutex // Traffic may be called concurrently
	totals    map[trafficKey]*trafficTotal

	// Gauges, readable without mu.
	rowsLeft, serving, untrackedNow atomic.Int32
}

// Open loads the programs and connects to nf_tables and rtnetlink in the calling
// thread's network namespace. Sockets are not affected before the first Sync.
func Open(ctx context.Context, s mode.Settings) (*Dataplane, error) {
	return open(ctx, s, nil)
}

func open(ctx context.Context, s mode.Settings, limits map[string]uint32) (d *Dataplane, err error) {
	p, err := findPaths(s)
	if err != nil {
		return nil, err
	}
	d = &Dataplane{
		checkStale: make(chan struct{}, 1), hostChanged: make(chan struct{}, 1),
		host: &host{}, disabled: errors.New("nothing was written yet"), countBytes: s.CountBytes,
		untracking: untracking{pods: s.EBPF.Untracked, ready: make(chan struct{}, 1)},
	}
	d.lastID = rand.Uint32() // so that two daemons that write at the same time use different IDs
	d.differ = differ.New(d.differMode())
	var undo []func() error
	defer func() {
		for _, f := range slices.Backward(undo) {
			if err != nil {
				err = errors.Join(err, f())
			}
		}
	}()
	if d.nodeCookie, err = netnsCookie(); err != nil {
		return nil, err
	}
	if d.kernel, err = load(p, limits); err != nil {
		return nil, err
	}
	undo = append(undo, d.kernel.close)
	if d.netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	undo = append(undo, func() error { d.netlink.Close(); return nil })
	d.hostEvents, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of addresses and routes: %w", err)
	}
	undo = append(undo, func() error { d.hostEvents.Close(); return nil })
	if len(d.untracking.pods) > 0 {
		if d.untracking.flows, err = mode.OpenFlows(); err != nil {
			return nil, err
		}
		undo = append(undo, d.untracking.flows.Close)
	}
	d.Dataplane, err = overlay(s, d.untracked).Open(ctx, s)
	return d, err
}

// Close releases handles; programs, maps and rules stay in force. It shortens the
// lease: unless a daemon starts soon, the rules alone serve new connections, because
// the next proxy may be kube-proxy, which does not know about the programs.
func (d *Dataplane) Close() error {
	d.netlink.Close()
	d.hostEvents.Close()
	var err error
	if d.untracking.flows != nil {
		err = d.untracking.flows.Close()
	}
	return errors.Join(err, d.locked(func() error { return d.setLease(leaseAfterClose) }), d.Dataplane.Close(), d.kernel.close())
}

// Sync brings maps and rules to the wanted state, whatever was there before, and then
// lets the programs act. If only the maps cannot be written, the rules serve alone.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func(began time.Time) { d.syncTook = time.Since(began) }(time.Now())
	mapsErr := d.syncHost(want)
	// Maps that no program reads yet are filled while the rules are written.
	concurrently := d.kernel.newMaps && mapsErr == nil
	written := make(chan error, 1)
	if concurrently {
		go func() { written <- d.syncRows(ctx, want) }()
	} else if mapsErr == nil {
		mapsErr = d.syncRows(ctx, want)
	}
	if mapsErr != nil {
		d.disable(ctx, mapsErr)
	}
	d.updateUntracking(ctx, want)
	refused, err := d.Dataplane.Sync(ctx, want)
	if concurrently {
		if mapsErr = <-written; mapsErr != nil {
			d.disable(ctx, mapsErr)
		}
	}
	if err != nil {
		return nil, d.rulesFailed(ctx, err)
	}
	d.rulesWritten()
	if mapsErr == nil {
		if mapsErr = d.removeRefused(ctx, want, refused); mapsErr == nil {
			mapsErr = d.enable(ctx)
		}
		if mapsErr != nil {
			d.disable(ctx, mapsErr)
		}
	}
	if d.needSync() {
		return nil, fmt.Errorf("sockets are not translated, the nftables rules serve all connections: %w", d.disabled)
	}
	return refused, nil
}

// needSync reports whether the programs are disabled, or should be, for a reason that
// may be gone at the next Sync. A full map is not such a reason.
func (d *Dataplane) needSync() bool { return d.disabled != nil && !errors.Is(d.disabled, errFull) }

// syncHost reads addresses and routes, and brings the maps that describe the node to
// the wanted state.
func (d *Dataplane) syncHost(want *proxy.State) error {
	h, err := readHost(d.netlink, want.Node)
	if err != nil {
		return err
	}
	d.hostMoved = d.node != nil && !d.sameHost(h)
	d.host, d.node, d.cidrs, d.nextCIDRs = h, want.Node, want.CIDRs, want.CIDRs
	d.rulesOnly, d.nextRulesOnly = map[proxy.PortKey]bool{}, map[proxy.PortKey]bool{}
	d.rowsLeft.Store(0)
	if err := d.writeNodeAddrs(h, want.Node); err != nil {
		return err
	}
	return d.forgetNamespaces()
}

// syncRows brings the maps of rows to the wanted state.
func (d *Dataplane) syncRows(ctx context.Context, want *proxy.State) error {
	d.differ.Forget() // so that room is reserved for all rows, including those in force
	d.reserve(ctx, want, slices.Collect(maps.Keys(want.Rows)), entryCounts{})
	refused, err := d.differ.Sync(ctx, want)
	if err == nil {
		err = d.retryRows(ctx, want, refused)
	}
	d.recordRulesOnly(slices.Collect(maps.Keys(d.nextRulesOnly)))
	return err
}

// removeRefused removes the rows from the maps that the rules refused.
func (d *Dataplane) removeRefused(ctx context.Context, want *proxy.State, refused proxy.Refused) error {
	if len(refused) == 0 {
		return nil
	}
	_, err := d.differ.Apply(ctx, want.Without(refused), &proxy.Changed{Rows: slices.SortedFunc(maps.Keys(refused), proxy.ComparePortKeys)})
	return err
}

// Rewritten returns what the last Sync wrote, in maps and rules. What changed only
// because untracking started or stopped, or because the node's addresses or routes
// changed, does not count: that is not a repair.
func (d *Dataplane) Rewritten() proxy.Rewritten {
	out := d.Dataplane.Rewritten()
	if (d.untracking.toggled || d.hostMoved) && len(out.Rows) == 0 {
		out = proxy.Rewritten{}
	}
	if d.hostMoved {
		return out
	}
	return out.And(d.differ.Rewritten())
}

// Apply brings changed rows to the wanted state, in the maps first.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.untracking.active {
		if why := d.serviceOverlap(want, slices.Values(changed.Rows)); why != "" {
			return nil, fmt.Errorf("%w: connections between pods must be tracked again: %s", proxy.ErrNeedSync, why)
		}
	}
	if d.disabled == nil {
		if err := d.applyMaps(ctx, want, changed); err != nil {
			d.disable(ctx, err)
		}
	}
	refused, err := d.Dataplane.Apply(ctx, want, changed)
	if err != nil {
		return nil, d.rulesFailed(ctx, err)
	}
	if d.disabled == nil {
		if err := d.removeRefused(ctx, want, refused); err != nil {
			d.disable(ctx, err)
		}
	}
	if d.needSync() {
		return nil, fmt.Errorf("%w: sockets are not translated, the nftables rules serve all connections: %w", proxy.ErrNeedSync, d.disabled)
	}
	return refused, nil
}

// rulesFailed disables the programs after the rules could not be written, since sockets
// must not be translated to where the rules would not send them. It returns the error
// of the rules.
func (d *Dataplane) rulesFailed(ctx context.Context, err error) error {
	if d.disabled == nil {
		d.disable(ctx, err)
	}
	if d.needSync() {
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	return err
}

// applyMaps brings the changed rows, and the node if it changed, to the wanted state
// in the maps.
func (d *Dataplane) applyMaps(ctx context.Context, want *proxy.State, changed *proxy.Changed) error {
	if changed.CIDRs {
		more := *changed
		d.nextCIDRs = want.CIDRs
		more.Rows = d.rowsWithin(want, changed.Rows)
		changed = &more
	}
	if changed.Node {
		if err := d.applyNode(want.Node); err != nil {
			return err
		}
	}
	for _, key := range changed.Rows {
		if want.Rows[key] == nil {
			delete(d.nextRulesOnly, key)
		}
	}
	d.reserve(ctx, want, changed.Rows, d.stored)
	refused, err := d.differ.Apply(ctx, want, changed)
	if err == nil {
		err = d.retryRows(ctx, want, refused)
	}
	d.recordRulesOnly(changed.Rows)
	d.cidrs = d.nextCIDRs // If an error disables the programs, a Sync follows.
	if slices.ContainsFunc(changed.Rows, func(k proxy.PortKey) bool { return k.Protocol == proxy.UDP }) {
		notify(d.checkStale)
	}
	return err
}

// applyNode brings the maps that describe the node to the wanted state, if rows do not
// depend on what changed.
func (d *Dataplane) applyNode(n *proxy.Node) error {
	d.node = n
	h, err := readHost(d.netlink, n)
	if err != nil {
		return err
	}
	if !d.sameHost(h) {
		return fmt.Errorf("%w: rows depend on what changed about the node's addresses", proxy.ErrNeedSync)
	}
	if err := d.writeNodeAddrs(h, n); err != nil {
		return err
	}
	return d.forgetNamespaces()
}

// enable attaches the programs, also where another process has detached one, and grants
// the lease. Programs that count bytes are attached first, so that no connection is missed.
func (d *Dataplane) enable(ctx context.Context) error {
	meter := d.kernel.detachMeters
	if d.countBytes {
		meter = d.kernel.attachMeters
	}
	if err := meter(); err != nil {
		klog.FromContext(ctx).Error(err, "Bytes of connections that are translated at sockets are not counted")
	}
	if err := d.kernel.attach(); err != nil {
		if !d.attached {
			err = errors.Join(err, d.kernel.detachMeters())
		}
		return err
	}
	d.attached, d.disabled = true, nil
	d.serving.Store(1)
	notify(d.checkStale)
	return d.setLease(lease)
}

// setLease lets the programs act for a period from now, whatever was left of the last one, unless
// they are disabled.
func (d *Dataplane) setLease(period time.Duration) error {
	if d.disabled != nil {
		return nil
	}
	now, err := monotonicNow()
	if err != nil {
		return err
	}
	return d.kernel.writeSettings(d.nodeCookie, now+uint64(period))
}

// disable makes the programs leave all sockets alone until the next Sync. Programs that
// cannot be stopped go on with what the maps have, so another Sync is needed whatever
// the reason was.
func (d *Dataplane) disable(ctx context.Context, why error) {
	d.differ.Forget()
	d.disabled = why
	d.serving.Store(0)
	log := klog.FromContext(ctx)
	log.Error(why, "Sockets are not translated, the nftables rules serve all connections")
	if err := d.kernel.writeSettings(0, 0); err != nil {
		log.Error(err, "Programs cannot be stopped, they stop when their lease expires", "lease", lease)
		d.disabled = fmt.Errorf("%v; stop the programs: %w", why, err)
	}
}

// Metrics returns what programs and rules count.
func (d *Dataplane) Metrics(ctx context.Context) []proxy.Metric {
	gauge := func(name, help string, v *atomic.Int32) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Read: func(yield func(float64, ...string)) { yield(float64(v.Load())) }}
	}
	return append(d.Dataplane.Metrics(ctx),
		proxy.Metric{
			Name: "ebpf_translated_total", Help: "Connections that were translated at their socket", Grows: true, Labels: []string{"protocol"},
			Read: func(yield func(float64, ...string)) {
				yield(float64(d.kernel.counter(translatedTCP)), "TCP")
				yield(float64(d.kernel.counter(translatedUDP)), "UDP")
			},
		},
		proxy.Metric{
			Name: "ebpf_cut_packets_total", Help: "Packets dropped because their UDP socket is connected to an endpoint that is gone", Grows: true,
			Read: func(yield func(float64, ...string)) { yield(float64(d.kernel.counter(cutPackets))) },
		},
		gauge("ebpf_rows_left", "Service ports that only the rules serve because the maps have no room for them", &d.rowsLeft),
		gauge("ebpf_sockets_served", "1 if connections are translated at sockets, 0 if the rules serve alone", &d.serving),
		gauge("ebpf_untracked", "1 if connections between pods are not tracked", &d.untrackedNow))
}

// notify makes c readable, unless it is already. A nil channel is ignored.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

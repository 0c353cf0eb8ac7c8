package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/kernel/link"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// linkName is the dummy link that has the frontend addresses.
const linkName = mode.IPVSLink

// aliases are the addresses of the virtual servers of NodePorts, one for all of the
// node's addresses: the IPv4 dummy address (RFC 7600), and an address of the
// discard-only prefix (RFC 6666).
var aliases = map[proxy.Family]netip.Addr{
	proxy.IPv4: netip.AddrFrom4([4]byte{192, 0, 0, 8}),
	proxy.IPv6: netip.MustParseAddr("100::8"),
}

// kernel is what the mode uses of the kernel, apart from rules.
type kernel struct {
	servers  ipvs.Interface // nil if the kernel has no IPVS
	link     link.Holder
	settings sysctl.Interface
	addrs    func() ([]netip.Addr, error) // the addresses of all links of this host, and its broadcast and anycast addresses
	relays   func() (bool, error)         // whether a daemon in mode userspace runs
	counted  ipvs.Interface               // reads counters while servers is in use; nil if the kernel has no IPVS
}

// openKernel connects to the calling thread's network namespace. With
// [ipvs.ErrMissing], everything but servers and counted can be used.
func openKernel() (kernel, error) {
	dummy, err := link.OpenDummy(linkName)
	if err != nil {
		return kernel{}, err
	}
	k := kernel{nil, dummy, sysctl.Kernel{}, link.Conn{}.Occupied, mode.RelayRuns, nil}
	servers, err := ipvs.Open()
	if err != nil {
		return k, err
	}
	k.servers = servers
	counted, err := ipvs.Open()
	if err == nil {
		k.counted = counted
	}
	return k, err
}

func (k kernel) close() (err error) {
	for _, c := range []io.Closer{k.link, k.servers, k.counted} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// list returns the addresses of the link, those that have only routes to it, and all
// virtual servers. It does nothing if err is not nil, and returns it.
func (k kernel) list(ctx context.Context, err error) (on, routed []netip.Addr, servers map[ipvs.Server]ipvs.Settings, _ error) {
	if err == nil {
		on, routed, err = k.link.List()
	}
	if err == nil && k.servers != nil {
		servers, err = k.servers.Servers(ctx)
	}
	return on, routed, servers, err
}

// Dataplane is the ipvs mode: IPVS chooses endpoints, and nftables rules do the rest.
type Dataplane struct {
	*nftables.Dataplane // the rules

	kernel   kernel
	options  mode.IPVS
	families []proxy.Family

	bound chan struct{} // has a token if there may be addresses to add to the link

	mu      sync.Mutex // Run works beside Sync and Apply
	differ  *differ.Differ[id, value]
	ours    map[netip.Addr]map[ipvs.Server]bool // our virtual servers by address; the keys are the addresses on our link
	routed  map[netip.Addr]bool                 // those of them that have only a route yet
	foreign map[netip.Addr]map[ipvs.Server]bool // virtual servers of other programs, as last listed
	local   map[netip.Addr]bool                 // addresses that the host has on other links
	relays  bool                                // a daemon in mode userspace still runs, so the rules serve all frontends
	left    map[ipvs.Server]bool                // frontends that the rules serve, or served since the last Sync
	empty   bool                                // the running Sync found no virtual server of ours
	leaving []*change                           // removals, to be made after the rules are written
	drained draining
	ready   bool      // the sysctls and timeouts have been set
	were    link.Note // the sysctls before we changed them

	counters counters
}

// Open connects to IPVS, links and nf_tables of the calling thread's network
// namespace. It writes nothing.
func Open(ctx context.Context, s mode.Settings) (*Dataplane, error) {
	k, err := openKernel()
	if err != nil {
		return nil, errors.Join(explain(err), k.close())
	}
	d := newDataplane(k, s)
	if d.Dataplane, err = d.overlay().Open(ctx, s); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return d, nil
}

// newDataplane returns a dataplane without its nftables part.
func newDataplane(k kernel, s mode.Settings) *Dataplane {
	d := &Dataplane{kernel: k, options: s.IPVS, families: s.Served(), bound: make(chan struct{}, 1)}
	d.differ = differ.New(d.objects())
	return d
}

// overlay describes what the rules leave to IPVS.
func (d *Dataplane) overlay() nftables.Overlay {
	return nftables.Overlay{Table: tableName, Takes: d.takes, OnLink: true, NodePortsTo: aliases}
}

// Close closes the connections to the kernel; servers, addresses and rules stay.
func (d *Dataplane) Close() error { return errors.Join(d.Dataplane.Close(), d.kernel.close()) }

// Sync compares everything in the kernel with want and writes the differences.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving, d.left = nil, map[ipvs.Server]bool{}
	defer d.wake()
	refused, err := d.differ.Sync(ctx, want)
	if d.empty = false; err != nil {
		return nil, err
	}
	by, err := d.Dataplane.Sync(ctx, want.Without(refused))
	if err == nil {
		err = d.leave(ctx)
	}
	if err == nil {
		maps.Copy(refused, by)
		err = d.without(ctx, want.Without(by), by)
	}
	for a := range d.ours {
		if err == nil {
			err = d.unbind(a)
		}
	}
	if err != nil {
		d.differ.Forget()
		return nil, err
	}
	return refused, nil
}

// Rewritten returns what the last Sync wrote to IPVS and to the rules.
func (d *Dataplane) Rewritten() proxy.Rewritten {
	return d.Dataplane.Rewritten().And(d.differ.Rewritten())
}

// Apply writes additions to IPVS, then the rules, then removals from IPVS.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.wake()
	d.leaving = nil
	before := &proxy.State{Rows: map[proxy.PortKey]*proxy.ServicePort{}}
	for _, k := range changed.Rows {
		before.Rows[k] = d.differ.Row(k).ServicePort
	}
	refused, err := d.differ.Apply(ctx, want, changed)
	if err != nil {
		return nil, err
	}
	rest := *changed
	rest.Rows = slices.DeleteFunc(slices.Clone(rest.Rows), func(k proxy.PortKey) bool { return refused[k] != nil })
	by, err := d.Dataplane.Apply(ctx, want, &rest)
	if err == nil {
		err = d.leave(ctx)
	}
	if err == nil { // the rules still have the earlier versions of what they refused
		err = d.without(ctx, before, by)
	}
	if err != nil { // servers and rules may be of different states
		d.differ.Forget()
		return nil, fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	maps.Copy(refused, by)
	return refused, nil
}

// without brings the servers of rows that the rules refused to another state: without
// rules, servers would answer whatever policy says.
func (d *Dataplane) without(ctx context.Context, state *proxy.State, by proxy.Refused) error {
	if len(by) == 0 {
		return nil
	}
	again, err := d.differ.Apply(ctx, state, &proxy.Changed{Rows: slices.SortedFunc(maps.Keys(by), proxy.ComparePortKeys)})
	for _, why := range again {
		err = errors.Join(err, why)
	}
	if err == nil {
		err = d.leave(ctx)
	}
	return err
}

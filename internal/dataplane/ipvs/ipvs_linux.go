package ipvs

import (
	"context"
	"errors"
	"fmt"
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

// linkName is the link that holds frontend addresses.
const linkName = mode.IPVSLink

// aliases are the addresses that stand for the node's in virtual servers of
// NodePorts: the IPv4 dummy address (RFC 7600), and one of the prefix that is
// never routed (RFC 6666).
var aliases = map[proxy.Family]netip.Addr{
	proxy.IPv4: netip.AddrFrom4([4]byte{192, 0, 0, 8}),
	proxy.IPv6: netip.MustParseAddr("100::8"),
}

// kernel is what the mode uses of the kernel beside rules.
type kernel struct {
	servers  ipvs.Interface // nil: it has none
	link     link.Holder
	settings sysctl.Interface
	addrs    func() ([]netip.Addr, error) // all of this host's, on whatever link
	relays   func() (bool, error)         // a daemon in mode userspace is there
	counted  ipvs.Interface               // to read beside what servers does; nil as well
}

// openKernel connects to the calling thread's network namespace. If the kernel has
// no IPVS, the rest is there.
func openKernel() (kernel, error) {
	dummy, err := link.OpenDummy(linkName)
	if err != nil {
		return kernel{}, err
	}
	k := kernel{nil, dummy, sysctl.Kernel{}, link.Conn{}.List, mode.RelayRuns, nil}
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

func (k kernel) close() error {
	err := k.link.Close()
	for _, c := range []ipvs.Interface{k.servers, k.counted} {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	return err
}

// list returns the addresses on the link and all virtual servers, unless there is
// an error already.
func (k kernel) list(ctx context.Context, err error) (on []netip.Addr, servers map[ipvs.Server]ipvs.Settings, _ error) {
	if err == nil {
		on, err = k.link.List()
	}
	if err == nil && k.servers != nil {
		servers, err = k.servers.Servers(ctx)
	}
	return on, servers, err
}

// Dataplane has IPVS choose endpoints, above rules.
type Dataplane struct {
	*nftables.Dataplane // the rules

	kernel   kernel
	options  mode.IPVS
	families []proxy.Family

	mu      sync.Mutex // Run works beside Sync and Apply
	differ  *differ.Differ[id, value]
	ours    map[netip.Addr]map[ipvs.Server]bool // virtual servers by their addresses, which are on our link
	foreign map[netip.Addr]map[ipvs.Server]bool // others' virtual servers, when they were last listed
	local   map[netip.Addr]bool                 // addresses that the host has on other links
	opens   bool                                // loopback takes NodePorts
	relays  bool                                // a daemon in mode userspace has packets come to this host: nothing is taken
	left    map[ipvs.Server]bool                // frontends that are left to the rules, or were since the last Sync
	empty   bool                                // none of ours was there when they were last listed, and none goes
	leaving []*change                           // what goes after the rules are written
	drained draining
	ready   bool      // the host's settings are as they should be
	were    link.Note // what they were before

	counters counters
}

// Open connects to IPVS, links and nf_tables of the calling thread's network
// namespace. It writes nothing.
func Open(ctx context.Context, s mode.Settings) (*Dataplane, error) {
	k, err := openKernel()
	if err != nil {
		return nil, explain(err)
	}
	d := newDataplane(k, s)
	if d.Dataplane, err = d.overlay().Open(ctx, s); err != nil {
		return nil, errors.Join(err, k.close())
	}
	return d, nil
}

// newDataplane returns a dataplane that has no rules yet.
func newDataplane(k kernel, s mode.Settings) *Dataplane {
	d := &Dataplane{kernel: k, options: s.IPVS, families: s.Served()}
	d.differ = differ.New(d.objects())
	return d
}

// overlay says what the rules leave to IPVS.
func (d *Dataplane) overlay() nftables.Overlay {
	return nftables.Overlay{Table: tableName, Takes: d.takes, OnLink: true, NodePortsTo: aliases}
}

// Close releases handles; servers, addresses and rules stay.
func (d *Dataplane) Close() error { return errors.Join(d.Dataplane.Close(), d.kernel.close()) }

// Sync makes the kernel right whatever was there before.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving, d.opens, d.left = nil, want.Node.OpensLoopback(), map[ipvs.Server]bool{}
	refused, err := d.differ.Sync(ctx, want)
	if d.empty = false; err != nil {
		return nil, err
	}
	by, err := d.Dataplane.Sync(ctx, want.Without(refused))
	if err == nil {
		err = d.leave(ctx)
	}
	if err == nil && len(by) > 0 { // nothing may reach servers that no rule watches over
		maps.Copy(refused, by)
		if _, err = d.differ.Apply(ctx, want.Without(by), &proxy.Changed{Rows: slices.SortedFunc(maps.Keys(by), proxy.ComparePortKeys)}); err == nil {
			err = d.leave(ctx)
		}
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

// Rewritten returns what the last Sync wrote, of IPVS and of the rules.
func (d *Dataplane) Rewritten() proxy.Rewritten {
	return d.Dataplane.Rewritten().And(d.differ.Rewritten())
}

// Apply brings what changed to what is wanted: what comes, the rules, what goes.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leaving = nil; changed.Node && d.opens != want.Node.OpensLoopback() {
		return nil, fmt.Errorf("%w: loopback begins or ceases to take NodePorts", proxy.ErrNeedSync)
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
	if err != nil { // servers and rules are not of the same state
		d.differ.Forget()
		return nil, fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	maps.Copy(refused, by)
	return refused, nil
}

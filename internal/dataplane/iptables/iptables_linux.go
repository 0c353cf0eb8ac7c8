package iptables

import (
	"context"
	"errors"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// Mode returns the iptables mode, in the variant that the host uses.
func Mode() mode.Mode {
	return mode.Mode{
		Name: "iptables", Probe: Probe, Prepare: Prepare, Needs: Needs, Open: mode.Opener(Open), Flows: mode.OpenFlows, Ends: mode.OpenEnds,
		Render:    Render,
		Balancing: []proxy.Balancing{proxy.Random},

		Traces:  func(ctx context.Context) (localnet.Traces, error) { return traces(ctx, 0) },
		Cleanup: Cleanup,
	}
}

// Dataplane writes rows to the iptables of one network namespace.
type Dataplane struct {
	settings mode.Settings
	variant  ipt.Variant
	counts   counts
	sysctls  sysctl.Interface
	families []*family
	liberal  bool // connection tracking accepts TCP packets outside the window
	localnet *localnet.Setting
	guard    localnet.Guard
	differ   *differ.Differ[id, value]
	syncing  bool

	logAffinityLimit sync.Once
}

// Open opens the dataplane in the variant that the host uses. It writes nothing.
func Open(ctx context.Context, s mode.Settings) (*Dataplane, error) {
	v, err := hostVariant(ctx)
	if err != nil {
		return nil, err
	}
	return OpenVariant(ctx, s, v)
}

// OpenVariant is like Open, but in the given variant.
func OpenVariant(ctx context.Context, s mode.Settings, v ipt.Variant) (*Dataplane, error) {
	programs := map[proxy.Family]ipt.Interface{}
	for _, f := range s.Served() {
		conn, err := ipt.Open(ctx, iptFamily(f), v)
		if err != nil {
			return nil, err
		}
		programs[f] = conn
	}
	klog.FromContext(ctx).Info("Using iptables", "variant", v.String())
	if others := s.Others; others != nil { // chains of the other variant count as those of another mode
		s.Others = func(ctx context.Context) (localnet.Traces, error) {
			found, err := others(ctx)
			own, failed := traces(ctx, v)
			return found.And(own), errors.Join(err, failed)
		}
	}
	return newDataplane(programs, sysctl.Kernel{}, s, v), nil
}

func newDataplane(programs map[proxy.Family]ipt.Interface, k sysctl.Interface, s mode.Settings, v ipt.Variant) *Dataplane {
	d := &Dataplane{settings: s, variant: v, sysctls: k}
	d.differ = differ.New(d.objects())
	shared := &changeDetector{}
	for _, name := range s.Served() {
		if name == proxy.IPv4 {
			d.localnet = localnet.New(k, s.Others)
		}
		f := &family{
			Family: name, programs: programs[name], legacy: v == ipt.Legacy, resetTCP: s.ResetTCP,
			packets: map[countedRule]packetCount{}, changeDetector: shared, rewrite: map[chainRef]bool{},
		}
		if f.legacy {
			f.changeDetector = &changeDetector{}
		}
		d.families = append(d.families, f)
	}
	return d
}

func (d *Dataplane) objects() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: d.constant, Row: d.row, HealthCheck: d.healthCheck, SameRows: d.sameRows,
		Same: same, Sharing: func(id) differ.Sharing { return differ.Unshared }, Order: order, Size: size,
		Limit: func() int { return maxChains(d.variant) }, Live: rankLive, List: d.list, Write: d.write,
	}
}

// Sync brings the tables to the wanted state, whatever they had before. It saves the
// tables and writes only what differs, so that session affinity is kept.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (refused proxy.Refused, err error) {
	d.syncing = true
	defer func() { d.syncing = false }()
	// If another process wrote at the same time, what we saved may have been outdated
	// when we wrote. Then everything is compared once more.
	for alone, n := false, 0; !alone && n < 2; n++ {
		if refused, err = d.syncRewriting(ctx, want); err != nil {
			return nil, err
		}
		alone = true
		for _, f := range d.families {
			unchanged, err := f.verify(ctx)
			if err != nil {
				d.differ.Forget()
				return nil, err
			}
			alone = alone && unchanged
		}
	}
	for _, f := range d.families {
		f.publishCounts()
	}
	d.localnet.Open(ctx)
	d.logAffinityLimit.Do(func() {
		// The number cannot be changed while the module is loaded.
		if n, err := sysctl.ReadInt(d.sysctls, "/sys/module/xt_recent/parameters/ip_list_tot"); err == nil {
			klog.FromContext(ctx).Info("Session affinity remembers a limited number of clients of each endpoint and forgets the oldest beyond it, "+
				"set option ip_list_tot of module xt_recent to raise the limit", "clients", n)
		}
	})
	return refused, nil
}

// syncRewriting calls the differ's Sync. Rules of other programs may not be deletable
// by their text, for example if their comment has a line break. Each time a Sync fails
// because of a further chain with such a rule, it is repeated, and the chain is
// rewritten as a whole.
func (d *Dataplane) syncRewriting(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	rewritten := func() (n int) {
		for _, f := range d.families {
			n += len(f.rewrite)
		}
		return n
	}
	for {
		before := rewritten()
		refused, err := d.differ.Sync(ctx, want)
		if err == nil || rewritten() == before {
			return refused, err
		}
	}
}

// Apply writes the difference that the changes make, by one or two restores per
// family, or more if they add or remove more than maxChains. It lists nothing.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	if changed.Node && d.differ.Node() != nil {
		d.guard = d.localnet.Guard(ctx, want.Node.OpensLoopback())
	}
	refused, err := d.differ.Apply(ctx, want, changed)
	if err != nil {
		return nil, err
	}
	if changed.Node {
		d.localnet.Open(ctx)
	}
	for _, f := range d.families {
		if len(f.written) > 0 {
			f.publishCounts()
		}
	}
	return refused, nil
}

func (d *Dataplane) Rewritten() proxy.Rewritten { return d.differ.Rewritten() }

func (d *Dataplane) sameRows(a, b *proxy.Node) bool {
	return a == b || !slices.ContainsFunc(d.families, func(f *family) bool { return !f.matches(a).same(f.matches(b)) })
}

func iptFamily(f proxy.Family) ipt.Family { return ipt.Families()[f] }

// Close does nothing: there are no handles, and the rules stay.
func (d *Dataplane) Close() error { return nil }

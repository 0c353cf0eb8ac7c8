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

// Mode is the iptables mode, in the variant that the host uses.
func Mode() mode.Mode {
	return mode.Mode{
		Name: "iptables", Probe: Probe, Prepare: Prepare, Needed: Needed, Open: mode.Opener(Open), Flows: mode.OpenFlows, Ends: mode.OpenEnds,
		Render:    Render,
		Balancing: []proxy.Balancing{proxy.Random},

		Traces:  func(ctx context.Context) (localnet.Traces, error) { return traces(ctx, 0) },
		Cleanup: Cleanup,
	}
}

// Dataplane writes rows to iptables of one network namespace.
type Dataplane struct {
	settings mode.Settings
	variant  ipt.Variant
	counts   counts
	sysctls  sysctl.Interface
	families []*family
	liberal  bool // connection tracking does not call packets invalid that are out of window
	localnet *localnet.Setting
	guard    localnet.Guard
	differ   *differ.Differ[id, value]
	syncing  bool

	sayAffinity sync.Once // how many clients are remembered
}

// Open finds the programs of the variant that the host uses. It writes nothing.
func Open(ctx context.Context, s mode.Settings) (*Dataplane, error) {
	v, err := hostVariant(ctx)
	if err != nil {
		return nil, err
	}
	return OpenVariant(ctx, s, v)
}

// OpenVariant is Open for a variant, whichever the host uses.
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
	if others := s.Others; others != nil { // the other variant's chains are another mode's, too
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
	both := &stamp{}
	for _, name := range s.Served() {
		if name == proxy.IPv4 {
			d.localnet = localnet.New(k, s.Others)
		}
		f := &family{
			Family: name, programs: programs[name], stamp: both, packets: map[countedRule]packetCount{}, legacy: v == ipt.Legacy,
			rewrite: map[chainRef]bool{}, resetTCP: s.ResetTCP,
		}
		if f.legacy {
			f.stamp = &stamp{}
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

// Sync makes the kernel right whatever was there before. It saves the tables
// and writes only what differs; what clients are remembered for stays.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (refused proxy.Refused, err error) {
	d.syncing = true
	defer func() { d.syncing = false }()
	// Where another process wrote meanwhile, what was saved may have been out of
	// date by the time we wrote: then it is done once more.
	for alone, n := false, 0; !alone && n < 2; n++ {
		if refused, err = d.syncRewriting(ctx, want); err != nil {
			return nil, err
		}
		alone = true
		for _, f := range d.families {
			undisturbed, err := f.check(ctx)
			if err != nil {
				d.differ.Forget()
				return nil, err
			}
			alone = alone && undisturbed
		}
	}
	for _, f := range d.families {
		f.report()
	}
	d.localnet.Open(ctx)
	d.sayAffinity.Do(func() {
		// The number cannot be changed while the module is loaded.
		if n, err := sysctl.ReadInt(d.sysctls, "/sys/module/xt_recent/parameters/ip_list_tot"); err == nil {
			klog.FromContext(ctx).Info("Session affinity remembers so many clients of each endpoint and then forgets the oldest, "+
				"load module xt_recent with ip_list_tot for more", "clients", n)
		}
	})
	return refused, nil
}

// syncRewriting is the differ's Sync, again as long as there is one more chain with a rule
// that cannot be deleted by its text, as another program's may be: that chain is written
// without.
func (d *Dataplane) syncRewriting(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	chains := func() (n int) {
		for _, f := range d.families {
			n += len(f.rewrite)
		}
		return n
	}
	for {
		before := chains()
		refused, err := d.differ.Sync(ctx, want)
		if err == nil || chains() == before {
			return refused, err
		}
	}
}

// Apply writes the difference that changes make, in one restore per family. It
// lists nothing.
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
			f.report()
		}
	}
	return refused, nil
}

func (d *Dataplane) Rewritten() proxy.Rewritten { return d.differ.Rewritten() }

func (d *Dataplane) sameRows(a, b *proxy.Node) bool {
	return a == b || !slices.ContainsFunc(d.families, func(f *family) bool { return !f.matches(a).same(f.matches(b)) })
}

func iptFamily(f proxy.Family) ipt.Family { return ipt.Families()[f] }

// Close has nothing to release: programs come and go, and the rules stay.
func (d *Dataplane) Close() error { return nil }

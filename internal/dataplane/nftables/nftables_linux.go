package nftables

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// Mode returns mode nftables for the table of modes.
func Mode() mode.Mode {
	return mode.Mode{
		Name: "nftables", Probe: Alone.Probe, Prepare: Alone.Prepare, Open: mode.Opener(Alone.Open), Flows: mode.OpenFlows, Ends: mode.OpenEnds,
		Traces:    Alone.Traces,
		Render:    Alone.Render,
		Balancing: []proxy.Balancing{proxy.Random, proxy.RoundRobin, proxy.SourceHash},
		Cleanup: func(ctx context.Context, _ mode.Settings, open proxy.Dataplane) ([]string, error) {
			return Alone.Cleanup(ctx, keepFor(open))
		},
	}
}

// tableOwner is implemented by [Dataplane], and by the modes that embed one.
type tableOwner interface{ ownsTable() bool }

var _ tableOwner = (*Dataplane)(nil) // a rename must not make keepFor miss it

// keepFor returns what Cleanup of mode nftables must keep for an open dataplane, which is nil
// if none is open.
func keepFor(open proxy.Dataplane) Keep {
	d, ok := open.(tableOwner)
	return Keep{Tables: ok && d.ownsTable(), Loopback: mode.KeepsLoopback(open)}
}

// Dataplane writes rows to nf_tables of one network namespace. Unless a method says
// otherwise, only one goroutine may use it.
type Dataplane struct {
	conn       nft.Interface
	reader     *reader // nil if there is no kernel, as in tests with a fake
	localnet   *localnet.Setting
	tables     []*table
	differ     *differ.Differ[id, value]
	applyBytes int
	syncBytes  int

	guard   localnet.Guard // the wanted one
	syncing bool           // a Sync is running
	// relisted is true while a Sync runs for the second time, after the kernel answered
	// EEXIST or ENOENT to the first: the same answer is then a row's fault, not the listing's.
	relisted bool
	// unsupported has the objects that got ENOENT even then: the kernel lacks something
	// that they need, such as the module of an expression.
	unsupported map[id]bool
	replaced    []*table  // tables that the running Sync replaces, because they cannot be repaired
	batch       nft.Batch // reused to save allocations
}

// Open connects to nf_tables of the calling thread's network namespace. It
// writes nothing.
func (o Overlay) Open(_ context.Context, s mode.Settings) (*Dataplane, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	second, err := nft.Open()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d := o.New(conn, s)
	if d.localnet != nil {
		d.localnet = localnet.New(sysctl.Kernel{}, s.Others)
	}
	d.reader = &reader{conn: second, counts: map[proxy.Family]clientCount{}}
	return d, nil
}

// New returns a dataplane that writes through conn. It does not change settings of
// the host.
func (o Overlay) New(conn nft.Interface, s mode.Settings) *Dataplane {
	d := &Dataplane{conn: conn, applyBytes: applyBytes, syncBytes: syncBytes}
	for _, f := range s.Served() {
		if f == proxy.IPv4 {
			d.localnet = localnet.New(nil, nil)
		}
		t := newTable(f, s.MasqueradeBit, o)
		t.resetTCP = s.ResetTCP
		d.tables = append(d.tables, t)
	}
	d.differ = differ.New(d.objects())
	return d
}

// ownsTable reports whether d writes the tables of mode nftables. Mode ebpf does, too.
func (d *Dataplane) ownsTable() bool { return d.tables[0].overlay.Table == Alone.Table }

// Close closes the connections to the kernel; the rules stay.
func (d *Dataplane) Close() error {
	if d.reader != nil {
		return errors.Join(d.conn.Close(), d.reader.conn.Close())
	}
	return d.conn.Close()
}

// Rewritten implements [proxy.Comparer].
func (d *Dataplane) Rewritten() proxy.Rewritten { return d.differ.Rewritten() }

// Watch implements [proxy.Watcher].
func (d *Dataplane) Watch(ctx context.Context, missed func(), changed func(what string)) error {
	var tables []nft.Table
	for _, t := range d.tables {
		tables = append(tables, t.Table)
	}
	return d.conn.Watch(ctx, tables, missed, changed)
}

// Probe returns the families that the kernel supports. It sends the rules in a batch
// that deletes them again, so the kernel checks them and nothing changes. The error
// is nil if at least one family is supported.
func (o Overlay) Probe(ctx context.Context, s mode.Settings) ([]proxy.Family, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, explain(err)
	}
	defer conn.Close()
	var can []proxy.Family
	for _, f := range s.Served() {
		if e := o.probe(ctx, conn, f, s.MasqueradeBit); e == nil {
			can = append(can, f)
		} else if err == nil {
			err = fmt.Errorf("%v: %w", f, e) // both families usually fail for the same reason
		}
	}
	if len(can) == 0 {
		return nil, explain(err)
	}
	return can, nil
}

func (o Overlay) probe(ctx context.Context, conn nft.Interface, f proxy.Family, markBit uint8) error {
	o.Table += "-probe"
	d := o.New(dryRun{emptyKernel{conn}}, mode.Settings{MasqueradeBit: markBit, Families: []proxy.Family{f}})
	d.applyBytes = math.MaxInt
	want := proxy.NewState()
	want.Node = probeNode(f)
	for _, sp := range []*proxy.ServicePort{probeRow(f, 0), probeRow(f, time.Second)} {
		want.Rows[sp.Key] = sp
	}
	refused, err := d.differ.Sync(ctx, want)
	for _, e := range refused {
		err = e
	}
	return err
}

// dryRun lists nothing, and deletes the table that a batch adds in the same batch.
type dryRun struct{ emptyKernel }

func (d dryRun) Commit(ctx context.Context, b *nft.Batch) error {
	b.DeleteTable(b.Ops[0].Table)
	return d.Interface.Commit(ctx, b)
}

// probeNode and probeRow together need every kind of rule and element.
func probeNode(f proxy.Family) *proxy.Node {
	all := netip.PrefixFrom(f.Unspecified(), 0)
	one := netip.PrefixFrom(f.Unspecified().Next(), f.Bits()-8)
	return &proxy.Node{
		LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{one}, Interface: "probe"},
		NodePorts: []netip.Prefix{all},

		LocalhostNodePorts: true,
		RefusesLoopback:    true,
	}
}

func probeRow(f proxy.Family, affinity time.Duration) *proxy.ServicePort {
	at := netip.AddrPortFrom(f.Unspecified().Next(), 1+uint16(affinity.Seconds()))
	list := []proxy.Endpoint{{Addr: at, Local: true}}
	return &proxy.ServicePort{
		Key:       proxy.PortKey{ServicePortName: proxy.ServicePortName{Name: affinity.String(), Protocol: proxy.TCP}, Family: f},
		Frontends: []proxy.Frontend{{Kind: proxy.LoadBalancer, Addr: at}, {Kind: proxy.NodePort, Addr: at}},
		Cluster:   list, Local: list, UsableSomewhere: true, External: proxy.ScopeLocal, Affinity: affinity,
		AllowFrom: []netip.Prefix{netip.PrefixFrom(at.Addr(), f.Bits())},
	}
}

// explain wraps an error of the kernel in a text that says what is missing and what to
// do about it.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("no permission to use nf_tables: run as root or with the capability NET_ADMIN in the node's network namespace: %w", err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("the kernel has no nf_tables (CONFIG_NF_TABLES, module nf_tables): load or build it, or choose another --proxy-mode: %w", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the kernel has no nf_tables (CONFIG_NF_TABLES) or it lacks what the rules need (Linux 5.10 with nft_nat, nft_masq, nft_fib, nft_numgen, nft_reject, nft_ct): %w", err)
	default:
		return err
	}
}

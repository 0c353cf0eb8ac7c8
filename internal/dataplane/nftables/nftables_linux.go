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

func Mode() mode.Mode {
	return mode.Mode{
		Name: "nftables", Probe: Alone.Probe, Prepare: Alone.Prepare, Open: mode.Opener(Alone.Open), Flows: mode.OpenFlows, Ends: mode.OpenEnds,
		Traces:    Alone.Traces,
		Render:    Alone.Render,
		Balancing: []proxy.Balancing{proxy.Random, proxy.RoundRobin, proxy.SourceHash},
		Cleanup: func(ctx context.Context, _ mode.Settings, open proxy.Dataplane) ([]string, error) {
			d, ok := open.(interface{ isAlone() bool })
			own := ok && d.isAlone()
			return Alone.Cleanup(ctx, Keep{Tables: own, Loopback: mode.KeepsLoopback(open)})
		},
	}
}

// Dataplane writes rows to nf_tables of one network namespace.
type Dataplane struct {
	conn       nft.Interface
	clients    *clientCounter // nil: nobody counts
	localnet   *localnet.Setting
	tables     []*table
	differ     *differ.Differ[id, value]
	applyBytes int
	syncBytes  int

	guard   localnet.Guard // as it is to be
	syncing bool
	// listedTwice is whether a Sync has begun again because something was there already,
	// or was not.
	listedTwice bool
	// absent is what could not be written even then, as the kernel does not have what it
	// needs: an expression of a module, say.
	absent   map[id]bool
	replaced []*table  // by the Sync under way, since they cannot be mended
	batch    nft.Batch // for its memory
}

// Open connects to nf_tables of the calling thread's network namespace. It
// writes nothing.
func (o Overlay) Open(_ context.Context, s mode.Settings) (*Dataplane, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	reader, err := nft.Open()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d := o.New(conn, s)
	if d.localnet != nil {
		d.localnet = localnet.New(sysctl.Kernel{}, s.Others)
	}
	d.clients = &clientCounter{conn: reader, last: map[proxy.Family]clientCount{}}
	return d, nil
}

// New returns a dataplane that writes through conn, and no settings of the host.
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

// isAlone says that no overlay takes anything from the rules.
func (d *Dataplane) isAlone() bool { return d.tables[0].over.Table == Alone.Table }

// Close releases the connection; the rules stay.
func (d *Dataplane) Close() error {
	if d.clients != nil {
		return errors.Join(d.conn.Close(), d.clients.conn.Close())
	}
	return d.conn.Close()
}

func (d *Dataplane) Rewritten() proxy.Rewritten { return d.differ.Rewritten() }

func (d *Dataplane) Watch(ctx context.Context, missed func(), changed func(what string)) error {
	var tables []nft.Table
	for _, t := range d.tables {
		tables = append(tables, t.Table)
	}
	return d.conn.Watch(ctx, tables, missed, changed)
}

// Probe returns the families that the kernel can do. It has the kernel check
// the rules we would write, in a batch that takes them back, so nothing changes.
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
			err = fmt.Errorf("%v: %w", f, e) // the first is enough: the other one's is much the same
		}
	}
	if len(can) == 0 {
		return nil, explain(err)
	}
	return can, nil
}

func (o Overlay) probe(ctx context.Context, conn nft.Interface, f proxy.Family, markBit uint8) error {
	o.Table += "-probe"
	d := o.New(dryRun{nothing{conn}}, mode.Settings{MasqueradeBit: markBit, Families: []proxy.Family{f}})
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

// dryRun sees no table, and takes back in the same batch the one that is made.
type dryRun struct{ nothing }

func (d dryRun) Commit(ctx context.Context, b *nft.Batch) error {
	b.DeleteTable(b.Ops[0].Table)
	return d.Interface.Commit(ctx, b)
}

// probeNode and probeRow make every kind of rule and element come up.
func probeNode(f proxy.Family) *proxy.Node {
	all := netip.PrefixFrom(f.Unspecified(), 0)
	one := netip.PrefixFrom(f.Unspecified().Next(), f.Bits()-8)
	return &proxy.Node{
		LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{one}, Interface: "probe"},
		NodePorts: []netip.Prefix{all},

		LocalhostNodePorts: true,
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

// explain says what is missing and what to do about it.
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

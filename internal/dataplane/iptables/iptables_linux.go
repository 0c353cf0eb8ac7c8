package iptables

import (
	"context"
	"math"
	"net/netip"
	"sync"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// Settings are what a dataplane is opened with.
type Settings struct {
	MarkBit  uint8          // the bit of the packet mark that asks for masquerading
	Families []proxy.Family // which families to write; nil: both
	Variant  ipt.Variant    // zero: the one that the host uses

	// Others tells what others than the programs of our own variant know about
	// who opened loopback; nil: there is nobody.
	Others func(context.Context, ipt.Variant) (localnet.Traces, error)
}

// Dataplane writes rows to iptables of one network namespace.
type Dataplane struct {
	settings Settings
	counts   counts
	sysctls  sysctl.Interface
	families []*family
	liberal  bool // connection tracking does not call packets invalid that are out of window
	told     bool // how many clients are remembered
	localnet *localnet.Setting
	packets  sync.Mutex // held while they are read

	// What the kernel has.
	node   *proxy.Node // nil before the first Sync
	guard  localnet.Guard
	cidrs  []netip.Prefix
	rows   map[proxy.PortKey]*proxy.ServicePort
	checks map[proxy.HealthCheckKey]*proxy.HealthCheck
}

var (
	_ proxy.Dataplane = (*Dataplane)(nil)
	_ proxy.Watcher   = (*Dataplane)(nil)
	_ proxy.Measured  = (*Dataplane)(nil)
)

// Open finds the programs of the variant that the host uses. It writes nothing.
func Open(ctx context.Context, s Settings) (*Dataplane, error) {
	if err := s.settleVariant(ctx); err != nil {
		return nil, err
	}
	programs := map[proxy.Family]ipt.Interface{}
	for _, f := range s.families() {
		conn, err := ipt.Open(ctx, iptFamily(f), s.Variant)
		if err != nil {
			return nil, err
		}
		programs[f] = conn
	}
	klog.FromContext(ctx).Info("Using iptables", "variant", s.Variant.String())
	return New(programs, sysctl.Kernel{}, s), nil
}

// New returns a dataplane that writes through programs.
func New(programs map[proxy.Family]ipt.Interface, k sysctl.Interface, s Settings) *Dataplane {
	d := &Dataplane{settings: s, sysctls: k}
	both := &changes{}
	for _, name := range s.families() {
		if name == proxy.IPv4 {
			d.localnet = localnet.New(k, func(ctx context.Context) (localnet.Traces, error) {
				if s.Others == nil {
					return localnet.Traces{}, nil
				}
				return s.Others(ctx, s.Variant)
			})
		}
		f := &family{Family: name, programs: programs[name], most: maxChains, changes: both}
		if s.Variant == ipt.Legacy {
			f.most, f.changes = math.MaxInt, &changes{}
		}
		d.families = append(d.families, f)
	}
	// Where the setting cannot be read the rule is needed.
	liberal, err := sysctl.ReadInt(k, "net/netfilter/nf_conntrack_tcp_be_liberal")
	d.liberal = err == nil && liberal != 0
	return d
}

// Variant returns which of the host's tables the rules are in.
func (d *Dataplane) Variant() ipt.Variant { return d.settings.Variant }

func (s Settings) families() []proxy.Family {
	if s.Families == nil {
		return proxy.Families[:]
	}
	return s.Families
}

func iptFamily(f proxy.Family) ipt.Family {
	if f == proxy.IPv6 {
		return ipt.IPv6
	}
	return ipt.IPv4
}

// Close has nothing to release: programs come and go, and the rules stay.
func (d *Dataplane) Close() error { return nil }

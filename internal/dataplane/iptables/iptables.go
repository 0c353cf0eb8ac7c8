package iptables

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/nfacct"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// Settings are what a dataplane is opened with.
type Settings struct {
	MarkBit  uint8          // the bit of the packet mark that asks for masquerading
	Families []proxy.Family // which families to write; nil: both
	Variant  ipt.Variant    // zero: the one that the host uses

	// Wrote is told what a table was given, after every change of it; nil: nobody is.
	Wrote func(Written)
}

// Written is what a change did to a table.
type Written struct {
	Family proxy.Family
	Table  string
	Rules  int // written by this change
	Owned  int // ours altogether
}

// Dataplane writes rows to iptables of one network namespace.
type Dataplane struct {
	settings Settings
	sysctls  sysctl.Interface
	counters nfacct.Interface
	families []*family
	liberal  bool // connection tracking does not call packets invalid that are out of window
	told     bool // how many clients are remembered
	closed   bool // NodePorts on loopback addresses, though they should not be
	tried    bool // whether the kernel can count packets

	// What the kernel has.
	node   *proxy.Node // nil before the first Sync
	cidrs  []netip.Prefix
	rows   map[proxy.PortKey]*proxy.ServicePort
	checks map[proxy.HealthCheckKey]*proxy.HealthCheck
}

var (
	_ proxy.Dataplane = (*Dataplane)(nil)
	_ proxy.Watcher   = (*Dataplane)(nil)
)

// Open finds the programs of the variant that the host uses. It writes nothing.
func Open(ctx context.Context, s Settings) (*Dataplane, error) {
	if s.Variant == 0 {
		s.Variant = hostVariant(ctx)
	}
	programs := map[proxy.Family]ipt.Interface{}
	for _, f := range s.families() {
		conn, err := ipt.Open(ctx, iptFamily(f), s.Variant)
		if err != nil {
			return nil, err
		}
		programs[f] = conn
	}
	counters, err := nfacct.Open()
	if err != nil && !errors.Is(err, nfacct.ErrUnsupported) {
		return nil, err
	}
	klog.FromContext(ctx).Info("Using iptables", "variant", s.Variant.String())
	d := New(programs, sysctl.Kernel{}, s)
	if err == nil { // the concrete pointer must not become a non-nil interface
		d.counters = counters
	}
	return d, nil
}

// New returns a dataplane that writes through programs and counts no packets.
func New(programs map[proxy.Family]ipt.Interface, k sysctl.Interface, s Settings) *Dataplane {
	d := &Dataplane{settings: s, sysctls: k}
	most := maxChains
	if s.Variant == ipt.Legacy {
		most = math.MaxInt
	}
	for _, f := range s.families() {
		d.families = append(d.families, &family{Family: f, programs: programs[f], most: most})
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

// Close releases what counts packets: programs come and go, and the rules stay.
func (d *Dataplane) Close() error {
	if d.counters == nil {
		return nil
	}
	return d.counters.Close()
}

// Probe returns the families whose programs are there and have a nat table to
// show. It writes nothing.
func Probe(ctx context.Context, s Settings) ([]proxy.Family, error) {
	if s.Variant == 0 {
		s.Variant = hostVariant(ctx)
	}
	var can []proxy.Family
	var errs []error
	for _, f := range s.families() {
		conn, err := ipt.Open(ctx, iptFamily(f), s.Variant)
		if err == nil {
			_, err = conn.Chain(ctx, nat, "POSTROUTING")
		}
		// Whoever holds the lock has a table too, and will let go of it.
		if err != nil && !errors.Is(err, ipt.ErrLocked) {
			errs = append(errs, fmt.Errorf("%v: %w", f, err))
			continue
		}
		can = append(can, f)
	}
	if len(can) > 0 {
		return can, nil
	}
	var err error
	for _, e := range errs { // on one line, for it is the last that is read
		if err == nil {
			err = e
		} else {
			err = fmt.Errorf("%w; %w", err, e)
		}
	}
	return nil, err
}

// hostVariant returns the variant that others on this host use: where the
// kubelet has left its sign, else where there are more rules, else nft.
func hostVariant(ctx context.Context) ipt.Variant {
	rules, signs := map[ipt.Variant]int{}, map[ipt.Variant]int{}
	for _, v := range ipt.Variants() {
		for _, f := range ipt.Families() {
			if names, err := ipt.LegacyTables(f); v == ipt.Legacy && (err != nil || len(names) == 0) {
				continue
			}
			conn, err := ipt.Open(ctx, f, v)
			if err != nil {
				continue
			}
			tables, err := conn.Save(ctx)
			if err != nil {
				continue
			}
			for _, t := range tables {
				for _, c := range t.Chains {
					rules[v] += len(c.Rules)
					if c.Name == "KUBE-IPTABLES-HINT" || c.Name == "KUBE-KUBELET-CANARY" {
						signs[v]++
					}
				}
			}
		}
	}
	chosen := ipt.NFT
	if signs[ipt.Legacy] > signs[ipt.NFT] || signs[ipt.Legacy] == signs[ipt.NFT] && rules[ipt.Legacy] > rules[ipt.NFT] {
		chosen = ipt.Legacy
	}
	if rules[ipt.NFT] > 0 && rules[ipt.Legacy] > 0 {
		klog.FromContext(ctx).Info("Both variants of iptables have rules, packets pass both",
			"chosen", chosen.String(), "nftRules", rules[ipt.NFT], "legacyRules", rules[ipt.Legacy])
	}
	if _, err := ipt.Open(ctx, ipt.IPv4, chosen); errors.Is(err, ipt.ErrMissing) && signs[chosen] == 0 {
		other := ipt.NFT + ipt.Legacy - chosen
		if _, err := ipt.Open(ctx, ipt.IPv4, other); err == nil {
			return other
		}
	}
	return chosen
}

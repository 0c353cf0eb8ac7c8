package iptables

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
)

// counts is what a Dataplane counts for its metrics.
type counts struct {
	failures, partialFailures atomic.Int64
	packetsFailed             atomic.Bool // reading packets failed last time, which was logged
	reading                   sync.Mutex  // held while packets are read
}

// ruleCounts is, by table, how many rules are ours and how many the last sync wrote.
type ruleCounts struct{ owned, written map[string]int }

// publishCounts publishes the counts of a finished sync for metrics.
func (f *family) publishCounts() {
	f.published.Store(&ruleCounts{maps.Clone(f.owned), f.written})
	f.written = map[string]int{}
}

func (d *Dataplane) SyncFailed(full bool) {
	d.counts.failures.Add(1)
	if !full {
		d.counts.partialFailures.Add(1)
	}
}

func (d *Dataplane) Metrics(ctx context.Context) []proxy.Metric {
	c := &d.counts
	failures := func(name, help string, n *atomic.Int64) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Grows: true, Labels: []string{"ip_family"}, Read: func(yield func(float64, ...string)) {
			for _, f := range d.families {
				yield(float64(n.Load()), f.Family.String())
			}
		}}
	}
	rules := func(name, help string, of func(*ruleCounts) map[string]int) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Labels: []string{"table", "ip_family"}, Read: func(yield func(float64, ...string)) {
			for _, f := range d.families {
				for _, table := range []string{filter, nat} {
					if r := f.published.Load(); r != nil {
						yield(float64(of(r)[table]), table, f.Family.String())
					}
				}
			}
		}}
	}
	packets := func(name, help string, of *countedRule) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Grows: true, Read: func(yield func(float64, ...string)) {
			n, err := d.packets(ctx, of)
			if before := c.packetsFailed.Swap(err != nil); err != nil && !before {
				klog.FromContext(ctx).Error(err, "Cannot read the packet counters of rules, metrics show the last known values")
			}
			yield(float64(n))
		}}
	}
	return []proxy.Metric{
		failures("sync_proxy_rules_iptables_restore_failures_total", "Restores of iptables that failed", &c.failures),
		failures("sync_proxy_rules_iptables_partial_restore_failures_total", "Partial syncs of iptables that failed", &c.partialFailures),
		rules("sync_proxy_rules_iptables_total", "Rules of ours in iptables", func(r *ruleCounts) map[string]int { return r.owned }),
		rules("sync_proxy_rules_iptables_last", "Rules that the last sync wrote to iptables", func(r *ruleCounts) map[string]int { return r.written }),
		packets("iptables_ct_state_invalid_dropped_packets_total", "Packets dropped because the state of their connection was invalid", &invalidDropped),
		packets("iptables_localhost_nodeports_accepted_packets_total", "Packets accepted at NodePorts of loopback addresses", &localhostAccepted),
	}
}

// countedRule identifies a rule whose counter is a metric.
type countedRule struct {
	chainRef
	comment string
}

var (
	invalidDropped    = countedRule{chainRef{filter, kubeForward}, "kubernetes packets of invalid connections"}
	localhostAccepted = countedRule{chainRef{nat, kubePost}, "kubernetes nodeports on loopback addresses"}
)

// packetCount is the counter of a rule, and the sum of its last values each time it was
// reset because the rule was rewritten.
type packetCount struct{ now, before uint64 }

// packets returns how many packets a rule has matched in both families. If a counter
// cannot be read, packets uses its last value and also returns an error. It is safe for
// concurrent use.
func (d *Dataplane) packets(ctx context.Context, r *countedRule) (sum uint64, err error) {
	d.counts.reading.Lock()
	defer d.counts.reading.Unlock()
	for _, f := range d.families {
		c := f.packets[*r]
		if *r != localhostAccepted || f.Family == proxy.IPv4 && d.localnet.InUse() { // otherwise there is no such rule
			n, failed := f.programs.Packets(ctx, r.table, r.chain, r.comment)
			if failed != nil {
				err = errors.Join(err, failed)
				n = c.now
			}
			if n < c.now {
				c.before += c.now
			}
			c.now = n
			f.packets[*r] = c
		}
		sum += c.before + c.now
	}
	return sum, err
}

// The ends of the comments of rules for frontends without an endpoint.
const (
	noEndpoints      = " has no endpoints"
	noLocalEndpoints = " has no local endpoints"
)

// Traffic yields the refused packets, which rules count. Other traffic is counted by
// connection tracking.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	var errs []error
	for _, f := range d.families {
		sum := map[proxy.Sample]uint64{} // a frontend may have several rules
		errs = append(errs, f.programs.Counters(ctx, filter, func(chain, rule string, packets uint64) {
			if s, ok := f.refusedBy(chain, rule); ok {
				sum[s] += packets
			}
		}))
		for s, packets := range sum {
			s.Packets[proxy.In] = packets
			yield(s)
		}
	}
	return errors.Join(errs...)
}

// refusedBy returns the frontend and the reason of a rule that refuses packets, and
// whether it is such a rule.
func (f *family) refusedBy(chain, rule string) (s proxy.Sample, ok bool) {
	switch at := (chainRef{filter, chain}); {
	case at == restricted:
		s.Refused = proxy.SourceRange
	case at != emptyClusterIP && at != emptyExternal && at != nodePortFilter:
		return s, false
	case strings.Contains(rule, noEndpoints):
		s.Refused = proxy.NoEndpoints
	case strings.Contains(rule, noLocalEndpoints):
		s.Refused = proxy.NoLocalEndpoint
	default:
		return s, false
	}
	addr, port := f.Family.Unspecified(), uint64(0)
	words := strings.Fields(rule)
	for i := range len(words) - 1 {
		switch value := words[i+1]; words[i] {
		case "-d":
			if p, err := netip.ParsePrefix(value); err == nil && chain != nodePortFilter.chain {
				addr = p.Addr()
			}
		case "-p":
			s.Protocol = protocols[value]
		case "--dport":
			port, _ = strconv.ParseUint(value, 10, 16)
		}
	}
	s.Frontend = netip.AddrPortFrom(addr, uint16(port))
	return s, port != 0
}

// protocols has the protocols by their names in rules.
var protocols = map[string]proxy.Protocol{"tcp": proxy.TCP, "udp": proxy.UDP, "sctp": proxy.SCTP}

package metrics

import (
	"fmt"
	"sync/atomic"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/proxy"
)

// IPTablesRules says how many rules of a table are ours, and how many of them
// the last sync wrote.
func (m *Metrics) IPTablesRules(table string, f proxy.Family, n IPTablesCount) {
	m.iptRules.WithLabelValues(table, f.String()).Set(float64(n.Owned))
	m.iptWritten.WithLabelValues(table, f.String()).Set(float64(n.Written))
}

// IPTablesCount is a number of rules.
type IPTablesCount struct {
	Owned, Written int
}

// IPTablesRestoreFailure counts a restore that failed.
func (m *Metrics) IPTablesRestoreFailure(f proxy.Family) {
	m.iptRestoreFailures.WithLabelValues(f.String()).Inc()
}

// IPTablesPartialRestoreFailure counts a partial sync that failed.
func (m *Metrics) IPTablesPartialRestoreFailure(f proxy.Family) {
	m.iptPartialFailures.WithLabelValues(f.String()).Inc()
}

// PacketCounter is packets that the kernel counts by itself.
type PacketCounter uint8

// The packets that are counted.
const (
	InvalidDropped    PacketCounter = iota // dropped because the state of their connection is invalid
	LocalhostAccepted                      // to NodePorts on loopback addresses
	numPacketCounters
)

// String returns the counter in words.
func (c PacketCounter) String() string {
	switch c {
	case InvalidDropped:
		return "packets dropped as invalid"
	case LocalhostAccepted:
		return "packets accepted at NodePorts on loopback addresses"
	default:
		panic(fmt.Sprintf("unknown packet counter %d", uint8(c)))
	}
}

// packetCollector asks the kernel when it is asked.
type packetCollector struct {
	k8s.BaseStableCollector
	read    func(PacketCounter) (uint64, error)
	failed  func(PacketCounter, error)
	descs   [numPacketCounters]*k8s.Desc
	failing [numPacketCounters]atomic.Bool
}

func newPacketCollector(s Settings) *packetCollector {
	desc := func(name, help string) *k8s.Desc {
		return k8s.NewDesc(subsystem+"_"+name, help, nil, nil, k8s.ALPHA, "")
	}
	c := &packetCollector{
		read:   s.PacketCounter,
		failed: s.PacketCounterFailed,
		descs: [...]*k8s.Desc{
			InvalidDropped:    desc("iptables_ct_state_invalid_dropped_packets_total", "Packets dropped because the state of their connection was invalid"),
			LocalhostAccepted: desc("iptables_localhost_nodeports_accepted_packets_total", "Packets accepted at NodePorts of loopback addresses"),
		},
	}
	if c.failed == nil {
		c.failed = func(PacketCounter, error) {}
	}
	return c
}

// DescribeWithStability sends what there is.
func (c *packetCollector) DescribeWithStability(ch chan<- *k8s.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// CollectWithStability sends what the kernel has counted, without what it
// cannot say: an incomplete answer is worth more than none.
func (c *packetCollector) CollectWithStability(ch chan<- k8s.Metric) {
	for i, d := range c.descs {
		n, err := c.read(PacketCounter(i))
		if was := c.failing[i].Swap(err != nil); err != nil {
			if !was {
				c.failed(PacketCounter(i), err)
			}
			continue
		}
		ch <- k8s.NewLazyConstMetric(d, k8s.CounterValue, float64(n))
	}
}

package metrics

import (
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

// Packets is what rules have matched.
type Packets struct {
	InvalidDropped    uint64 // the state of their connection was invalid
	LocalhostAccepted uint64 // to NodePorts on loopback addresses
}

// packetCollector asks the kernel when it is asked.
type packetCollector struct {
	k8s.BaseStableCollector
	read               func() Packets
	invalid, localhost *k8s.Desc
}

func newPacketCollector(s Settings) *packetCollector {
	desc := func(name, help string) *k8s.Desc {
		return k8s.NewDesc(subsystem+"_"+name, help, nil, nil, k8s.ALPHA, "")
	}
	return &packetCollector{
		read:      s.Packets,
		invalid:   desc("iptables_ct_state_invalid_dropped_packets_total", "Packets dropped because the state of their connection was invalid"),
		localhost: desc("iptables_localhost_nodeports_accepted_packets_total", "Packets accepted at NodePorts of loopback addresses"),
	}
}

// DescribeWithStability sends what there is.
func (c *packetCollector) DescribeWithStability(ch chan<- *k8s.Desc) {
	ch <- c.invalid
	ch <- c.localhost
}

// CollectWithStability sends what the kernel has counted.
func (c *packetCollector) CollectWithStability(ch chan<- k8s.Metric) {
	n := c.read()
	ch <- k8s.NewLazyConstMetric(c.invalid, k8s.CounterValue, float64(n.InvalidDropped))
	ch <- k8s.NewLazyConstMetric(c.localhost, k8s.CounterValue, float64(n.LocalhostAccepted))
}

package metrics

import (
	"context"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/proxy"
)

// affinityCollector asks, when it is asked, how many clients are remembered.
type affinityCollector struct {
	k8s.BaseStableCollector
	families []proxy.Family
	read     func(context.Context, proxy.Family) (clients, room int, err error)
	clients  *k8s.Desc
	room     *k8s.Desc
}

func newAffinityCollector(s Settings) *affinityCollector {
	desc := func(name, help string) *k8s.Desc {
		return k8s.NewDesc(subsystem+"_"+name, help, []string{byFamily}, nil, k8s.ALPHA, "")
	}
	return &affinityCollector{
		families: s.Families,
		read:     s.AffinityClients,
		clients:  desc("nftables_affinity_clients", "Clients that are remembered for session affinity"),
		room: desc("nftables_affinity_clients_limit",
			"Clients that can be remembered for session affinity; beyond, connections are balanced and not remembered"),
	}
}

// DescribeWithStability sends what there is.
func (c *affinityCollector) DescribeWithStability(ch chan<- *k8s.Desc) {
	ch <- c.clients
	ch <- c.room
}

// CollectWithStability sends what the kernel says. Before the first sync there
// is nothing to count.
func (c *affinityCollector) CollectWithStability(ch chan<- k8s.Metric) {
	for _, f := range c.families {
		clients, room, err := c.read(context.Background(), f)
		if err != nil {
			continue
		}
		ch <- k8s.NewLazyConstMetric(c.clients, k8s.GaugeValue, float64(clients), f.String())
		ch <- k8s.NewLazyConstMetric(c.room, k8s.GaugeValue, float64(room), f.String())
	}
}

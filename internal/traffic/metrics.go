package traffic

import (
	"context"

	"sluice/internal/proxy"
)

// values is the function that receives the values of a metric.
type values = func(value float64, labels ...string)

// Metrics returns the metrics of traffic. Reading them refreshes the counts, unless that was done a
// moment ago. The label names differ from those that monitoring systems attach themselves.
// Endpoints have separate metrics, so that a sum over the series of a Service counts nothing twice.
func (c *Collector) Metrics(ctx context.Context) []proxy.Metric {
	now := func() *snapshot {
		c.Refresh(ctx)
		return c.shown.Load()
	}
	services := source{"service_", []string{"service_namespace", "service_name", "service_port"}, func() []line { return now().services }}
	all := append(services.traffic(), services.others()...)
	if c.settings.Endpoints {
		labels := append(services.labels[:3:3], "endpoint_address")
		all = append(all, source{"endpoint_", labels, func() []line { return now().endpoints }}.traffic()...)
	}
	return append(all,
		proxy.Metric{
			Name: "service_folded", Help: "Service ports with traffic that share the series " + folded + ", because there are more than --service-traffic-series",
			Read: func(yield values) { yield(float64(now().folded)) },
		},
		proxy.Metric{
			Name: "service_traffic_lost_events_total", Grows: true,
			Help: "How often the kernel lost events of connections that ended; each time some may not be counted",
			Read: func(yield values) { yield(float64(c.lost.Load())) },
		})
}

// source is what a group of metrics with the same labels is read from.
type source struct {
	prefix string
	labels []string
	lines  func() []line
}

// metric returns a metric with the values that read yields for each line.
func (s source) metric(m proxy.Metric, read func(*line, values)) proxy.Metric {
	m.Name, m.Labels = s.prefix+m.Name, append(s.labels[:len(s.labels):len(s.labels)], m.Labels...)
	m.Read = func(yield values) {
		lines := s.lines()
		for i := range lines {
			l := &lines[i]
			read(l, func(value float64, more ...string) {
				yield(value, append(l.labels[:len(l.labels):len(l.labels)], more...)...)
			})
		}
	}
	return m
}

// traffic returns the metrics that both Services and endpoints have.
func (s source) traffic() []proxy.Metric {
	carried := func(of func(*line) [len(proxy.Directions)]uint64) func(*line, values) {
		return func(l *line, yield values) {
			for _, d := range proxy.Directions {
				if l.carried {
					yield(float64(of(l)[d]), d.String())
				}
			}
		}
	}
	return []proxy.Metric{
		s.metric(proxy.Metric{Name: "connections_total", Help: "Connections that were sent to an endpoint", Grows: true},
			func(l *line, yield values) { yield(float64(l.Connections)) }),
		s.metric(proxy.Metric{Name: "active_connections", Help: "Connections that are open"},
			func(l *line, yield values) { yield(float64(l.Active)) }),
		s.metric(proxy.Metric{Name: "failed_connections_total", Help: "Connections that the endpoint refused or did not answer", Grows: true},
			func(l *line, yield values) {
				if l.failing {
					yield(float64(l.Failed))
				}
			}),
		s.metric(proxy.Metric{Name: "bytes_total", Help: "Bytes that connections carried, in to endpoints and out to clients", Grows: true, Labels: []string{"direction"}},
			carried(func(l *line) [len(proxy.Directions)]uint64 { return l.Bytes })),
		s.metric(proxy.Metric{Name: "packets_total", Help: "Packets that connections carried, in to endpoints and out to clients", Grows: true, Labels: []string{"direction"}},
			carried(func(l *line) [len(proxy.Directions)]uint64 { return l.Packets })),
	}
}

// others returns the metrics that only Services have.
func (s source) others() []proxy.Metric {
	return []proxy.Metric{
		s.metric(proxy.Metric{Name: "refused_packets_total", Help: "Packets that were rejected or dropped, by reason", Grows: true, Labels: []string{"reason"}},
			func(l *line, yield values) {
				for i, n := range l.refused {
					if n > 0 {
						yield(float64(n), reasons[i].String())
					}
				}
			}),
		s.metric(proxy.Metric{Name: "endpoints", Help: "Endpoints in use on this node (local) and elsewhere (remote), and draining ones", Labels: []string{"state"}},
			func(l *line, yield values) {
				for i, n := range l.states {
					if !l.folded {
						yield(float64(n), states[i].String())
					}
				}
			}),
	}
}

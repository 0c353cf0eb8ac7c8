package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
	"sluice/internal/traffic"
)

// The values of --service-traffic.
const (
	countNothing     = "off"
	countConnections = "connections"
	countBytes       = "bytes"
)

// TrafficOptions say which traffic of Services is counted.
type TrafficOptions struct {
	Level     string
	Endpoints bool
	MaxSeries int
}

func (o *TrafficOptions) check() error {
	if !slices.Contains([]string{countNothing, countConnections, countBytes}, o.Level) {
		return fmt.Errorf("--service-traffic %q is not %s, %s or %s", o.Level, countNothing, countConnections, countBytes)
	}
	if o.MaxSeries < 0 {
		return fmt.Errorf("--service-traffic-series %d is less than 0", o.MaxSeries)
	}
	return nil
}

// openTraffic creates the traffic collector, if traffic is to be counted and can
// be. If it cannot, the proxy runs without, and trafficOff says why.
func (s *ProxyServer) openTraffic(ctx context.Context) {
	o, mode := s.plan.options.Traffic, s.mode
	if o.Level == countNothing {
		s.trafficOff = "--service-traffic is off"
		return
	}
	set := traffic.Settings{
		LocalAddrs: link.Conn{}.LocalPrefixes, Bytes: o.Level == countBytes || mode.Flows == nil, Failures: mode.Unseen == "",
		MaxSeries: o.MaxSeries, Endpoints: o.Endpoints,
	}
	set.Metered, _ = s.dataplane.(proxy.Metered)
	if mode.Flows == nil && set.Metered == nil {
		s.trafficOff = fmt.Sprintf("mode %s counts no traffic", mode.Name)
		return
	}
	if mode.Flows != nil {
		var err error
		if set.Flows, err = mode.Flows(); err == nil {
			if set.Ends, err = mode.Ends(); err != nil {
				err = errors.Join(err, set.Flows.Close())
			}
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Traffic of Services is not counted because connection tracking cannot be read")
			s.trafficOff = fmt.Sprintf("connection tracking cannot be read: %v", err)
			return
		}
	}
	s.traffic = traffic.New(set)
}

// statusTraffic serves the counts of the collector to the status API, both families
// added up. A nil Collector means that nothing is counted.
type statusTraffic struct {
	*traffic.Collector
	off string // why nothing is counted
}

// Of returns the traffic of some rows: of ports, and of their endpoints.
func (t statusTraffic) Of(ctx context.Context, rows []proxy.PortKey) []statusapi.PortTraffic {
	if t.Collector == nil {
		return nil
	}
	t.Refresh(ctx)
	return byPort(t.RowsOf(rows))
}

// All returns the traffic of all Services, of ports or of endpoints, and when it was
// counted. If nothing is counted, off says why.
func (t statusTraffic) All(ctx context.Context, endpoints bool) (all []statusapi.PortTraffic, counted time.Time, off string) {
	if t.Collector == nil {
		return nil, time.Time{}, t.off
	}
	t.Refresh(ctx)
	rows, counted := t.Rows()
	return slices.DeleteFunc(byPort(rows), func(p statusapi.PortTraffic) bool { return (p.Endpoint != "") != endpoints }), counted, ""
}

// byPort adds up the families of each port.
func byPort(rows []traffic.Row) []statusapi.PortTraffic {
	var all []statusapi.PortTraffic
	ports := map[proxy.ServicePortName]int{}
	for i := range rows {
		r := &rows[i]
		of := statusapi.PortTraffic{
			Namespace: r.Key.Namespace, Name: r.Key.Name, Port: r.Key.Port, Protocol: r.Key.Protocol.String(),
			Traffic: trafficStatus(&r.Counts),
		}
		if at, ok := ports[r.Key.ServicePortName]; ok {
			all[at].Add(&of.Traffic)
		} else {
			ports[r.Key.ServicePortName] = len(all)
			all = append(all, of)
		}
		for a, n := range r.Endpoints {
			of.Endpoint, of.Traffic = a.String(), trafficStatus(&n)
			all = append(all, of)
		}
	}
	return all
}

func trafficStatus(n *traffic.Counts) statusapi.Traffic {
	out := statusapi.Traffic{Connections: &n.Connections, Active: &n.Active}
	if n.Carried {
		out.BytesIn, out.BytesOut = &n.Bytes[proxy.In], &n.Bytes[proxy.Out]
		out.PacketsIn, out.PacketsOut = &n.Packets[proxy.In], &n.Packets[proxy.Out]
	}
	if n.Failing {
		out.Failed = &n.Failed
	}
	for why, packets := range n.Refused {
		if out.Refused == nil {
			out.Refused = map[string]uint64{}
		}
		out.Refused[why.String()] = packets
	}
	return out
}

// conntrackMetrics returns the metrics of the size of the connection tracking table.
func conntrackMetrics(usage func() *statusapi.Tracking) []proxy.Metric {
	gauge := func(name, help string, of func(*statusapi.Tracking) int) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Read: func(yield func(float64, ...string)) {
			if t := usage(); t != nil {
				yield(float64(of(t)))
			}
		}}
	}
	return []proxy.Metric{
		gauge("conntrack_entries", "Connections that the kernel tracks", func(t *statusapi.Tracking) int { return t.Entries }),
		gauge("conntrack_entries_limit", "Connections that the kernel can track; packets of further ones are dropped",
			func(t *statusapi.Tracking) int { return t.Limit }),
	}
}

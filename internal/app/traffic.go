package app

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane"
	"sluice/internal/kernel/link"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
	"sluice/internal/traffic"
)

// What --service-traffic can be.
const (
	countNothing     = "off"
	countConnections = "connections"
	countBytes       = "bytes"
)

// TrafficOptions are what is counted of Services.
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

// openTraffic opens what counts traffic, if that is to be counted. A kernel that
// does not tell of connections is no reason to stop.
func (s *ProxyServer) openTraffic(ctx context.Context, mode dataplane.Mode) {
	o := s.plan.options.Traffic
	if o.Level == countNothing {
		return
	}
	set := traffic.Settings{
		LocalAddrs: link.Conn{}.List, Bytes: o.Level == countBytes && mode.Flows != nil, MaxSeries: o.MaxSeries, Endpoints: o.Endpoints,
	}
	set.Metered, _ = s.dataplane.(proxy.Metered)
	if mode.Flows != nil {
		var err, failed error
		set.Flows, err = mode.Flows()
		set.Ends, failed = mode.Ends()
		if err = errors.Join(err, failed); err != nil {
			klog.FromContext(ctx).Error(err, "Traffic of Services is not counted, the kernel does not tell of connections")
			return
		}
	}
	s.traffic = traffic.New(set)
}

// trackingMetrics are how full the kernel's table of connections is.
func trackingMetrics(k sysctl.Interface) []proxy.Metric {
	number := func(name, help, setting string) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Read: func(yield func(float64, ...string)) {
			if n, err := sysctl.ReadInt(k, "net/netfilter/"+setting); err == nil { // else there is no connection tracking
				yield(float64(n))
			}
		}}
	}
	return []proxy.Metric{
		number("conntrack_entries", "Connections that the kernel tracks", "nf_conntrack_count"),
		number("conntrack_entries_limit", "Connections that the kernel can track; packets of more are dropped", "nf_conntrack_max"),
	}
}

package app

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/platform"
)

// tune fits the host to the proxy. What cannot be had is reported, in the log
// and as an event, and is no reason to stop.
func (s *ProxyServer) tune(ctx context.Context) {
	for _, p := range tune(ctx, s.plan.config) {
		s.events.warn(reasonPlatform, actionTune, "%s", p)
	}
}

// initialise does what needs more privileges than serving, and needs no API
// server for it.
func initialise(ctx context.Context, c config.Configuration) error {
	mode, err := dataplane.Of(c.Mode)
	if err != nil {
		return err
	}
	// The kernel loads what it needs for the probe, connection tracking among
	// it, so that its settings are there to be set.
	if _, err := mode.Probe(ctx, dataplane.Settings{MasqueradeBit: uint8(c.MasqueradeBit)}); err != nil {
		return fmt.Errorf("probe mode %s: %w", c.Mode, err)
	}
	tune(ctx, c)
	klog.FromContext(ctx).Info("Prepared the node", "mode", c.Mode)
	return nil
}

func tune(ctx context.Context, c config.Configuration) []platform.Problem {
	logger := klog.FromContext(ctx)
	report := platform.Apply(ctx, sysctl.Kernel{}, platformSettings(c))
	for _, ch := range report.Changes {
		logger.Info("Changed a setting of the host", "name", ch.Name, "old", ch.Old, "new", ch.New)
	}
	for _, p := range report.Problems {
		logger.Info("Setting of the host is not as it should be", "problem", p.String())
	}
	return report.Problems
}

func platformSettings(c config.Configuration) platform.Settings {
	ct := c.Conntrack
	return platform.Settings{
		OOMScoreAdj: &c.OOMScoreAdj,
		Conntrack: platform.Conntrack{
			MaxPerCore:     platform.Wish[int](ct.MaxPerCore),
			Min:            platform.Wish[int](ct.Min),
			TCPEstablished: platform.Wish[time.Duration](ct.TCPEstablishedTimeout),
			TCPCloseWait:   platform.Wish[time.Duration](ct.TCPCloseWaitTimeout),
			TCPBeLiberal:   ct.TCPBeLiberal.Value,
			UDP:            platform.Wish[time.Duration](ct.UDPTimeout),
			UDPStream:      platform.Wish[time.Duration](ct.UDPStreamTimeout),
		},
	}
}

package app

import (
	"context"
	"fmt"
	"net/netip"

	"k8s.io/klog/v2"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/platform"
	"sluice/internal/proxy"
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
	settings := dataplane.Settings{MasqueradeBit: uint8(c.MasqueradeBit)}
	if settings.Families, err = mode.Probe(ctx, settings); err != nil {
		return fmt.Errorf("probe mode %s: %w", c.Mode, err)
	}
	tune(ctx, c)
	if err := mode.Prepare(ctx, settings, opensLoopback(c)); err != nil {
		klog.FromContext(ctx).Error(err, "NodePorts on loopback addresses are as they were, the daemon will try")
	}
	klog.FromContext(ctx).Info("Prepared the node", "mode", c.Mode)
	return nil
}

// opensLoopback reports whether loopback addresses take NodePorts, whatever the
// addresses of the node are.
func opensLoopback(c config.Configuration) bool {
	n := proxy.Node{LocalhostNodePorts: c.LocalhostNodePorts, NodePorts: c.NodePortAddresses.CIDRs}
	if !c.NodePortAddresses.Primary && len(n.NodePorts) == 0 {
		n.NodePorts = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
	}
	return n.OpensLoopback()
}

func tune(ctx context.Context, c config.Configuration) []platform.Problem {
	logger := klog.FromContext(ctx)
	report := platform.Apply(ctx, sysctl.Kernel{}, &c)
	for _, ch := range report.Changes {
		logger.Info("Changed a setting of the host", "name", ch.Name, "old", ch.Old, "new", ch.New)
	}
	for _, p := range report.Problems {
		logger.Info("Setting of the host is not as it should be", "problem", p.String())
	}
	return report.Problems
}

package app

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source/manifest"
)

// chooseMode returns the mode that the host needs, or else the best that the
// kernel can do.
func chooseMode(ctx context.Context) (config.ProxyMode, error) { return choose(ctx, dataplane.Modes()) }

func choose(ctx context.Context, modes []dataplane.Mode) (config.ProxyMode, error) {
	families, _ := hostFamilies(os.DirFS("/proc"))
	s := dataplane.Settings{Families: families}
	if m := neededMode(ctx, modes, s); m != "" {
		return m, nil
	}
	var reasons []string
	for _, m := range modes {
		_, err := m.Probe(ctx, s)
		if err == nil {
			klog.FromContext(ctx).Info("No proxy mode is set, took the best that the kernel can do",
				append([]any{"mode", m.Name}, because(strings.Join(reasons, "; "))...)...)
			return m.Name, nil
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", m.Name, err))
	}
	return "", fmt.Errorf("no proxy mode is set and the kernel can do none of ours: %s", strings.Join(reasons, "; "))
}

// because is a reason for the log, if there is one.
func because(reason string) []any {
	if reason == "" {
		return nil
	}
	return []any{"because", reason}
}

// neededMode returns the mode without which the host would lose traffic that it
// had with kube-proxy's default; empty if there is none, or none to be had.
func neededMode(ctx context.Context, modes []dataplane.Mode, s dataplane.Settings) config.ProxyMode {
	logger := klog.FromContext(ctx)
	for _, m := range modes {
		if m.Needed == nil {
			continue
		}
		why, err := m.Needed(ctx, s)
		if err != nil {
			logger.Error(err, "Cannot tell whether the host needs a mode, set one if Services get no answer", "mode", m.Name)
		}
		if why == "" {
			continue
		}
		if _, err := m.Probe(ctx, s); err != nil {
			logger.Error(err, "The host needs a mode that is not to be had: Services get no answer unless rules of yours accept their traffic",
				"mode", m.Name, "because", why)
			continue
		}
		logger.Info("No proxy mode is set, took the one that the host needs; where rules accept the traffic of Services, another can be set",
			"mode", m.Name, "because", why)
		return m.Name
	}
	return ""
}

// probeMode returns the mode of a configuration and how to open it.
func probeMode(ctx context.Context, c config.Configuration) (dataplane.Mode, dataplane.Settings, error) {
	mode, err := dataplane.Of(c.Mode)
	if err != nil {
		return mode, dataplane.Settings{}, err
	}
	s, err := probe(ctx, mode, c)
	return mode, s, err
}

// probe returns how to open a mode: with the families that both the host and the
// mode can serve.
func probe(ctx context.Context, mode dataplane.Mode, c config.Configuration) (dataplane.Settings, error) {
	host, missing := hostFamilies(os.DirFS("/proc"))
	s := dataplane.Settings{MasqueradeBit: uint8(c.MasqueradeBit), Families: host}
	can, err := mode.Probe(ctx, s)
	if err != nil {
		return s, fmt.Errorf("probe mode %s: %w", mode.Name, err)
	}
	s.Families = slices.DeleteFunc(slices.Clone(can), func(f proxy.Family) bool { return !slices.Contains(host, f) })
	if len(s.Families) == 0 {
		return s, fmt.Errorf("probe mode %s: no family can be served: %s", mode.Name, missing)
	}
	return s, nil
}

// rules returns the rules by which rows are made.
func (p plan) rules(ctx context.Context, families []proxy.Family) (resolve.Settings, error) {
	c := p.config
	s := resolve.Settings{
		NodeName:          p.node,
		Families:          families,
		ClusterCIDRs:      c.ClusterCIDRs,
		MasqueradeAll:     c.MasqueradeAll,
		NodePortAddresses: resolve.NodePortAddresses(c.NodePortAddresses),

		IgnoreExternalIPs:  !c.Gates().Enabled(config.GateExternalIPs),
		LocalhostNodePorts: c.LocalhostNodePorts,
	}
	p.detection(ctx, &s)
	if c.BindAddress.IsValid() {
		s.NodeIPs = append(s.NodeIPs, c.BindAddress)
		return s, nil
	}
	if p.from.manifests == "" || !s.NodePortAddresses.Primary {
		return s, nil
	}
	// What is wrong with a file is reported by the source that watches it.
	objects, _, err := manifest.Load(p.from.manifests)
	if err != nil {
		return s, fmt.Errorf("look for a Node in %s: %w", p.from.manifests, err)
	}
	if !slices.ContainsFunc(objects.Nodes, func(n *v1.Node) bool { return n.Name == p.node }) {
		s.NodePortAddresses.Primary = false
		klog.FromContext(ctx).Info("No Node object tells the node's addresses, NodePorts are open on every local address",
			"node", p.node, "folder", p.from.manifests)
	}
	return s, nil
}

// detection sets how our pods' traffic is recognised.
func (p plan) detection(ctx context.Context, s *resolve.Settings) {
	o := p.config.Object
	for m := range resolve.DetectNone { // spelled alike
		if m.String() == string(o.DetectLocalMode) {
			s.DetectLocal = m
		}
	}
	switch s.DetectLocal {
	case resolve.DetectClusterCIDR:
		if len(s.ClusterCIDRs) == 0 {
			klog.FromContext(ctx).Info("Without a cluster CIDR pods cannot be told from other clients, ClusterIP traffic is not masqueraded")
		}
	case resolve.DetectBridgeInterface:
		s.Interface = o.DetectLocal.BridgeInterface
	case resolve.DetectInterfaceNamePrefix:
		s.Interface = o.DetectLocal.InterfaceNamePrefix
	}
}

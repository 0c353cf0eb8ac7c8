package app

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
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
		if _, err := m.Probe(ctx, s); err != nil {
			reasons = append(reasons, fmt.Sprintf("%s: %v", m.Name, err))
			continue
		}
		facts := []any{"mode", m.Name}
		if len(reasons) > 0 {
			facts = append(facts, "because", strings.Join(reasons, "; "))
		}
		klog.FromContext(ctx).Info("No proxy mode is set, took the best that the kernel can do", facts...)
		return m.Name, nil
	}
	return "", fmt.Errorf("no proxy mode is set and the kernel can do none of ours: %s", strings.Join(reasons, "; "))
}

// probeMode says why this node cannot do the mode of a configuration; nil if it
// can.
func probeMode(ctx context.Context, c config.Configuration) error {
	mode, err := dataplane.Of(c.Mode)
	if err != nil {
		return err
	}
	families, _ := hostFamilies(os.DirFS("/proc"))
	if _, err := mode.Probe(ctx, dataplane.Settings{Families: families, MasqueradeBit: uint8(c.MasqueradeBit)}); err != nil {
		return fmt.Errorf("probe mode %s: %w", c.Mode, err)
	}
	return nil
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
		logger.Info("No proxy mode is set, took the one that the host needs; where rules accept the traffic of Services, mode nftables can be set",
			"mode", m.Name, "because", why)
		return m.Name
	}
	return ""
}

// probe returns the families that both the host and the mode can serve.
func probe(ctx context.Context, mode dataplane.Mode, s dataplane.Settings) ([]proxy.Family, error) {
	host, missing := hostFamilies(os.DirFS("/proc"))
	s.Families = host
	can, err := mode.Probe(ctx, s)
	if err != nil {
		return nil, err
	}
	can = slices.DeleteFunc(slices.Clone(can), func(f proxy.Family) bool { return !slices.Contains(host, f) })
	if len(can) == 0 {
		return nil, fmt.Errorf("no family can be served: %s", missing)
	}
	facts := []any{"families", fmt.Sprint(can)}
	if missing != "" {
		facts = append(facts, "because", missing)
	}
	klog.FromContext(ctx).Info("Serving", facts...)
	return can, nil
}

// rules returns the rules by which rows are made.
func (p plan) rules(ctx context.Context, families []proxy.Family) (resolve.Settings, error) {
	c := p.config
	s := resolve.Settings{
		NodeName:          p.node,
		Families:          families,
		ClusterCIDRs:      c.ClusterCIDRs,
		MasqueradeAll:     c.MasqueradeAll,
		NodePortAddresses: resolve.NodePortAddresses{Primary: c.NodePortAddresses.Primary, CIDRs: c.NodePortAddresses.CIDRs},

		IgnoreExternalIPs:  !c.Gate(config.GateExternalIPs),
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
	known, err := hasNode(p.from.manifests, p.node)
	if err != nil {
		return s, fmt.Errorf("look for a Node in %s: %w", p.from.manifests, err)
	}
	if !known {
		s.NodePortAddresses.Primary = false
		klog.FromContext(ctx).Info("No Node object tells the node's addresses, NodePorts are open on every local address",
			"node", p.node, "folder", p.from.manifests)
	}
	return s, nil
}

// detection sets how our pods' traffic is recognised.
func (p plan) detection(ctx context.Context, s *resolve.Settings) {
	c := p.config
	switch c.Object.DetectLocalMode {
	case config.LocalModeClusterCIDR:
		s.DetectLocal = resolve.DetectClusterCIDR
		if len(c.ClusterCIDRs) == 0 {
			klog.FromContext(ctx).Info("Without a cluster CIDR pods cannot be told from other clients, ClusterIP traffic is not masqueraded")
		}
	case config.LocalModeNodeCIDR:
		s.DetectLocal = resolve.DetectNodeCIDR
	case config.LocalModeBridgeInterface:
		s.DetectLocal, s.Interface = resolve.DetectBridgeInterface, c.Object.DetectLocal.BridgeInterface
	case config.LocalModeInterfaceNamePrefix:
		s.DetectLocal, s.Interface = resolve.DetectInterfaceNamePrefix, c.Object.DetectLocal.InterfaceNamePrefix
	default:
		panic(fmt.Sprintf("unknown detect-local mode %q", c.Object.DetectLocalMode))
	}
}

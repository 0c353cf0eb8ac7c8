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
func chooseMode(ctx context.Context) (config.ProxyMode, error) { return choose(ctx, dataplane.Of) }

func choose(ctx context.Context, of func(config.ProxyMode) (dataplane.Mode, error)) (config.ProxyMode, error) {
	families, _ := hostFamilies(os.DirFS("/proc"))
	if m, err := neededMode(ctx, of, families); m != "" || err != nil {
		return m, err
	}
	var reasons []string
	for _, m := range config.Modes() {
		mode, err := of(m)
		if err != nil {
			return "", err
		}
		if _, err := mode.Probe(ctx, dataplane.Settings{Families: families}); err != nil {
			reasons = append(reasons, fmt.Sprintf("%s: %v", m, err))
			continue
		}
		facts := []any{"mode", m}
		if len(reasons) > 0 {
			facts = append(facts, "because", strings.Join(reasons, "; "))
		}
		klog.FromContext(ctx).Info("No proxy mode is set, took the best that the kernel can do", facts...)
		return m, nil
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
func neededMode(
	ctx context.Context, of func(config.ProxyMode) (dataplane.Mode, error), families []proxy.Family,
) (config.ProxyMode, error) {
	logger, s := klog.FromContext(ctx), dataplane.Settings{Families: families}
	for _, m := range config.Modes() {
		mode, err := of(m)
		if err != nil {
			return "", err
		}
		if mode.Needed == nil {
			continue
		}
		why, err := mode.Needed(ctx, s)
		if err != nil {
			logger.Error(err, "Cannot tell whether the host needs a mode, set one if Services get no answer", "mode", m)
		}
		if why == "" {
			continue
		}
		if _, err := mode.Probe(ctx, s); err != nil {
			logger.Error(err, "The host needs a mode that is not to be had: Services get no answer unless rules of yours accept their traffic",
				"mode", m, "because", why)
			continue
		}
		logger.Info("No proxy mode is set, took the one that the host needs; where rules accept the traffic of Services, mode nftables can be set",
			"mode", m, "because", why)
		return m, nil
	}
	return "", nil
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
	switch c.DetectLocalMode {
	case config.LocalModeClusterCIDR:
		s.DetectLocal = resolve.DetectClusterCIDR
		if len(c.ClusterCIDRs) == 0 {
			klog.FromContext(ctx).Info("Without a cluster CIDR pods cannot be told from other clients, ClusterIP traffic is not masqueraded")
		}
	case config.LocalModeNodeCIDR:
		s.DetectLocal = resolve.DetectNodeCIDR
	case config.LocalModeBridgeInterface:
		s.DetectLocal, s.Interface = resolve.DetectBridgeInterface, c.BridgeInterface
	case config.LocalModeInterfaceNamePrefix:
		s.DetectLocal, s.Interface = resolve.DetectInterfaceNamePrefix, c.InterfaceNamePrefix
	default:
		panic(fmt.Sprintf("unknown detect-local mode %q", c.DetectLocalMode))
	}
}

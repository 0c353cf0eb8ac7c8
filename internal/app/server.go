package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"k8s.io/klog/v2"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source"
)

// plan is all that a ProxyServer must know, checked.
type plan struct {
	config config.Configuration
	node   string
	from   origin
}

// ProxyServer joins a source, the engine and a dataplane, and runs them.
type ProxyServer struct {
	source    source.Source
	provider  engine.Provider
	dataplane proxy.Dataplane
}

// NewProxyServer asks the kernel what it can do and opens the dataplane. The
// kernel's rules stay as they are before Run.
func NewProxyServer(ctx context.Context, p plan) (*ProxyServer, error) {
	logger := klog.FromContext(ctx)
	logger.Info("Starting", "version", Version(), "mode", p.config.Mode, "source", p.from.String(), "node", p.node)
	mode, err := dataplane.Of(p.config.Mode)
	if err != nil {
		return nil, err
	}
	settings := dataplane.Settings{MasqueradeBit: uint8(p.config.MasqueradeBit)}
	if settings.Families, err = probe(ctx, mode, settings); err != nil {
		return nil, fmt.Errorf("probe mode %s: %w", p.config.Mode, err)
	}
	if p.config.DetectLocalMode == config.LocalModeClusterCIDR && len(p.config.ClusterCIDRs) == 0 {
		logger.Info("Without --cluster-cidr pods cannot be told from other clients, ClusterIP traffic is not masqueraded")
	}
	rules, err := p.resolveSettings(ctx, settings.Families)
	if err != nil {
		return nil, err
	}
	plane, err := mode.Open(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("open mode %s: %w", p.config.Mode, err)
	}
	return &ProxyServer{
		source:    p.from.open(p.node),
		dataplane: plane,
		provider: engine.New(engine.Settings{
			Dataplane:     plane,
			Resolver:      resolve.New(rules),
			MinSyncPeriod: p.config.MinSyncPeriod,
			SyncPeriod:    p.config.SyncPeriod,
		}),
	}, nil
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

// resolveSettings returns the rules by which rows are made.
func (p plan) resolveSettings(ctx context.Context, families []proxy.Family) (resolve.Settings, error) {
	c := p.config
	s := resolve.Settings{
		NodeName:          p.node,
		Families:          families,
		ClusterCIDRs:      c.ClusterCIDRs,
		MasqueradeAll:     c.MasqueradeAll,
		NodePortAddresses: resolve.NodePortAddresses{Primary: c.NodePortAddresses.Primary, CIDRs: c.NodePortAddresses.CIDRs},
	}
	switch c.DetectLocalMode {
	case config.LocalModeClusterCIDR:
		s.DetectLocal = resolve.DetectClusterCIDR
	case config.LocalModeNodeCIDR:
		s.DetectLocal = resolve.DetectNodeCIDR
	case config.LocalModeBridgeInterface:
		s.DetectLocal, s.Interface = resolve.DetectBridgeInterface, c.BridgeInterface
	case config.LocalModeInterfaceNamePrefix:
		s.DetectLocal, s.Interface = resolve.DetectInterfaceNamePrefix, c.InterfaceNamePrefix
	default:
		panic(fmt.Sprintf("unknown detect-local mode %q", c.DetectLocalMode))
	}
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
		s.NodePortAddresses = resolve.NodePortAddresses{}
		klog.FromContext(ctx).Info("No Node object tells the node's addresses, NodePorts are open on every local address",
			"node", p.node, "folder", p.from.manifests)
	}
	return s, nil
}

// Run proxies until ctx ends, and then returns nil. The rules stay in force.
func (s *ProxyServer) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	go func() {
		err := s.source.Run(ctx, s.provider)
		if err != nil {
			err = fmt.Errorf("read objects: %w", err)
		}
		ended <- err
	}()
	go func() { ended <- s.provider.SyncLoop(ctx) }()
	first := <-ended
	stop() // One cannot do without the other.
	second := <-ended
	err := errors.Join(first, second, s.dataplane.Close())
	if err == nil {
		klog.FromContext(ctx).Info("Stopped, the rules stay in force")
	}
	return err
}

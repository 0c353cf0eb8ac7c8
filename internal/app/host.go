package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sluice/internal/config"
	"sluice/internal/dataplane"
	"sluice/internal/dataplane/mode"
	"sluice/internal/engine"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/platform"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/runner"
	"sluice/internal/source/manifest"
)

// initialise prepares the node for a daemon with fewer privileges: it sets the
// host's settings that the daemon may not write. It needs no API server.
func initialise(ctx context.Context, p plan) error {
	c := p.config
	// The probe comes first because it makes the kernel load modules, such as
	// nf_conntrack, without which some settings do not exist. Whether eBPF programs
	// can be attached is left to the daemon, which has the mounts for that.
	o := *p.options
	o.EBPF.Fallback = true
	mode, settings, err := o.probeMode(ctx, c)
	if err != nil {
		return err
	}
	tuneHost(ctx, p)
	if err := mode.Prepare(ctx, settings, opensLoopback(c)); err != nil {
		klog.FromContext(ctx).Error(err, "NodePorts on loopback addresses were not prepared, the daemon will try to do that")
	}
	klog.FromContext(ctx).Info("Prepared the node", "mode", c.Mode)
	return nil
}

// opensLoopback reports whether NodePorts are open on loopback addresses, which
// does not depend on the addresses of the node.
func opensLoopback(c config.Configuration) bool {
	n := proxy.Node{LocalhostNodePorts: c.LocalhostNodePorts, NodePorts: c.NodePortAddresses.CIDRs}
	if !c.NodePortAddresses.Primary && len(n.NodePorts) == 0 {
		n.NodePorts = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
	}
	return n.OpensLoopback()
}

// tuneHost changes settings of the host, and of this process, as the configuration
// asks. It logs and returns what cannot be set; the proxy works without.
func tuneHost(ctx context.Context, p plan) []platform.Problem {
	logger := klog.FromContext(ctx)
	if runtime.GOOS == systemWindows {
		if err := setPriority(p.priority); err != nil {
			logger.Error(err, "Cannot set the priority class, it stays as it is", "wanted", p.options.Windows.PriorityClass)
		}
		return nil
	}
	report := platform.Apply(ctx, sysctl.Kernel{}, &p.config)
	if p.options.Traffic.Level == countBytes {
		report.CountBytes(ctx, sysctl.Kernel{})
	}
	if p.chosen && p.config.Mode == config.NFTables {
		// kube-proxy's default, mode iptables, drops these packets. A rule that did so here
		// would also break connections that this node sees one direction of.
		report.BeLiberal(ctx, sysctl.Kernel{})
	}
	for _, ch := range report.Changes {
		logger.Info("Changed a setting of the host", "name", ch.Name, "old", ch.Old, "new", ch.New)
	}
	for _, p := range report.Problems {
		logger.Info("Could not change a setting of the host", "problem", p.String())
	}
	return report.Problems
}

// nodeName returns the name of this node's Node object: the override if there is
// one, otherwise the host's name, in lower case.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("get the host's name: %w; give the node's name with --hostname-override", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", errors.New("the host's name is blank; give the node's name with --hostname-override")
	}
	return name, nil
}

// enabledFamilies returns the families that are enabled on this host, and why one
// is missing. On Windows it returns both, and the mode finds out.
func enabledFamilies() ([]proxy.Family, string) {
	if runtime.GOOS == systemWindows {
		return proxy.Families[:], ""
	}
	return hostFamilies(os.DirFS("/proc"))
}

// hostFamilies returns the families that are enabled according to a /proc file
// system, and why one is missing. Disabled IPv6 counts as missing.
func hostFamilies(proc fs.FS) (families []proxy.Family, missing string) {
	if _, err := fs.Stat(proc, "net/if_inet6"); err != nil {
		return []proxy.Family{proxy.IPv4}, "the kernel has no IPv6"
	}
	off, err := fs.ReadFile(proc, "sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && strings.TrimSpace(string(off)) == "1" {
		return []proxy.Family{proxy.IPv4}, "net.ipv6.conf.all.disable_ipv6 is 1"
	}
	return proxy.Families[:], ""
}

// chooseMode returns the mode that the host requires, or else the best that the
// kernel supports.
func chooseMode(ctx context.Context, s dataplane.Settings) (config.ProxyMode, error) {
	s.Families, _ = enabledFamilies()
	return choose(ctx, dataplane.Modes(), s)
}

func choose(ctx context.Context, modes []dataplane.Mode, s dataplane.Settings) (config.ProxyMode, error) {
	m, why := neededMode(ctx, modes, s)
	if m != "" {
		return m, nil
	}
	var reasons []string
	for _, m := range modes {
		_, err := m.Probe(ctx, s)
		if err == nil {
			klog.FromContext(ctx).Info("No proxy mode is set, using the best that the kernel supports",
				append([]any{"mode", m.Name}, reasonFields(strings.Join(append(reasons, why...), "; "))...)...)
			return m.Name, nil
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", m.Name, err))
	}
	return "", fmt.Errorf("no proxy mode is set and the kernel supports none: %s", strings.Join(reasons, "; "))
}

// reasonFields returns a reason as key and value for the log, nil if it is empty.
func reasonFields(reason string) []any {
	if reason == "" {
		return nil
	}
	return []any{"because", reason}
}

// neededMode returns the mode without which the host would lose traffic that it
// had with kube-proxy's default. It is empty if there is no such mode, or if the
// kernel does not support it; why says so for the log.
func neededMode(ctx context.Context, modes []dataplane.Mode, s dataplane.Settings) (_ config.ProxyMode, why []string) {
	logger := klog.FromContext(ctx)
	for _, m := range modes {
		if m.Needs == nil {
			continue
		}
		need, err := m.Needs(s)(ctx)
		if err != nil {
			logger.Error(err, "Cannot determine whether the host requires this mode, set it if Services do not answer", "mode", m.Name)
		}
		if need.Why == "" {
			if err == nil {
				why = append(why, "no rule of the host drops what only mode "+string(m.Name)+" could keep alive")
			}
			continue
		}
		if _, err := m.Probe(ctx, s); err != nil {
			logger.Error(err, "The host requires a mode that the kernel does not support, Services do not answer unless the host's own rules accept their traffic",
				"mode", m.Name, "because", need.Why)
			why = append(why, "mode "+string(m.Name)+" cannot run")
			continue
		}
		logger.Info("No proxy mode is set, using the one that the host requires; another can be set if the host's own rules accept the traffic of Services",
			"mode", m.Name, "because", need.Why)
		return m.Name, nil
	}
	return "", why
}

// probeMode returns the mode of a configuration and the settings to open it with.
func (o *Options) probeMode(ctx context.Context, c config.Configuration) (dataplane.Mode, dataplane.Settings, error) {
	mode, err := dataplane.Of(c.Mode)
	if err != nil {
		return mode, dataplane.Settings{}, err
	}
	s, err := probe(ctx, mode, o.settingsOf(c))
	return mode, s, err
}

// settingsOf returns the settings of modes by flags and configuration, without
// families.
func (o *Options) settingsOf(c config.Configuration) dataplane.Settings {
	v, w, e := c.Object.IPVS, c.Object.Winkernel, o.EBPF
	e.Untracked, _ = parseCIDRs(untrackedCIDRs, o.Untracked) // validated by Options.plan
	return dataplane.Settings{
		CountBytes: o.Traffic.Level == countBytes, ResetTCP: o.ResetTCP, Relay: o.Relay, EBPF: e, MasqueradeBit: uint8(c.MasqueradeBit),
		IPVS: mode.IPVS{
			Scheduler: v.Scheduler, ExcludeCIDRs: c.ExcludeCIDRs, StrictARP: v.StrictARP,
			TCPTimeout: v.TCPTimeout.Duration, TCPFinTimeout: v.TCPFinTimeout.Duration, UDPTimeout: v.UDPTimeout.Duration,
		},
		Kernelspace: mode.Kernelspace{
			Network: cmp.Or(w.NetworkName, os.Getenv("KUBE_NETWORK")), SourceVIP: c.SourceVIP, DSR: w.EnableDSR,
			RootEndpoint: w.RootHnsEndpointName, ForwardHealthCheckVIP: w.ForwardHealthCheckVip,
			HealthzPort: c.HealthzBindAddress.Port(),
		},
	}
}

// probe returns the settings with the families that both the host and the mode
// can serve. It is an error if there is none.
func probe(ctx context.Context, mode dataplane.Mode, s dataplane.Settings) (dataplane.Settings, error) {
	host, missing := enabledFamilies()
	s.Families = host
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

// resolveSettings returns the settings by which the resolver makes rows.
func (p plan) resolveSettings(ctx context.Context, families []proxy.Family) (resolve.Settings, error) {
	c := p.config
	s := resolve.Settings{
		NodeName:          p.node,
		NodeExpected:      p.source.manifests == "",
		Families:          families,
		MasqueradeAll:     c.MasqueradeAll,
		NodePortAddresses: resolve.NodePortAddresses(c.NodePortAddresses),

		IgnoreExternalIPs:  !c.Gates().Enabled(config.GateExternalIPs),
		LocalhostNodePorts: c.LocalhostNodePorts,
		RelayLoopback:      c.RelayLoopback,
		RefuseLoopback:     c.RefuseLoopback,
		Allowed:            p.allowed,
		Balancing:          p.balancing,
	}
	p.detectLocalPods(ctx, &s)
	if c.BindAddress.IsValid() {
		s.NodeIPs = append(s.NodeIPs, c.BindAddress)
		return s, nil
	}
	if p.source.manifests == "" || !s.NodePortAddresses.Primary {
		return s, nil
	}
	// The source that watches the files reports their problems.
	objects, _, err := manifest.Load(p.source.manifests)
	if err != nil {
		return s, fmt.Errorf("find the Node in %s: %w", p.source.manifests, err)
	}
	if !hasNode(objects, p.node) {
		s.NodePortAddresses.Primary = false
		klog.FromContext(ctx).Info("Found no Node object with the node's addresses, NodePorts are open on every local address",
			"node", p.node, "folder", p.source.manifests)
	}
	return s, nil
}

func hasNode(objects []metav1.Object, name string) bool {
	return slices.ContainsFunc(objects, func(o metav1.Object) bool {
		n, ok := o.(*v1.Node)
		return ok && n.Name == name
	})
}

// detectLocalPods sets how the traffic of this node's pods is recognised.
func (p plan) detectLocalPods(ctx context.Context, s *resolve.Settings) {
	switch o := p.config.Object; o.DetectLocalMode {
	case config.LocalModeNodeCIDR:
		s.NodeCIDRs = true
	case config.LocalModeBridgeInterface:
		s.LocalPods.Interface = o.DetectLocal.BridgeInterface
	case config.LocalModeInterfaceNamePrefix:
		s.LocalPods.Interface, s.LocalPods.IsPrefix = o.DetectLocal.InterfaceNamePrefix, true
	default:
		s.LocalPods.Sources = p.config.ClusterCIDRs
		if len(s.LocalPods.Sources) == 0 {
			klog.FromContext(ctx).Info("Without a cluster CIDR pods cannot be distinguished from other clients, ClusterIP traffic is not masqueraded")
		}
	}
}

// takeOver removes the kernel objects of kube-proxy and of our own other modes,
// which would continue to send connections to endpoints that no longer exist. It
// waits until our rules are in force, so that there is no moment without rules.
// Failures are retried with back-off. Objects that open connections still use are
// retried every drainRecheck. When nothing is left, it waits until ctx ends.
func (s *ProxyServer) takeOver(ctx context.Context) error {
	logger, doubts := klog.FromContext(ctx), s.plan.options.doubts
	level := 0 // verbosity of the message about open connections: it is shown once
	var r *runner.BoundedFrequencyRunner
	r = runner.New("remove objects of earlier modes and service proxies", func(ctx context.Context) error {
		removed, err := dataplane.Cleanup(ctx, s.plan.options.settingsOf(s.plan.config), s.dataplane)
		for _, what := range removed {
			logger.Info("Removed objects of an earlier mode or service proxy", "what", what)
		}
		switch {
		case err == nil:
		case onlyErrors(err, proxy.ErrInUse):
			logger.Info("Objects of an earlier mode or service proxy stay because another process uses them", "reason", err.Error())
		case onlyErrors(err, proxy.ErrInUse, proxy.ErrDraining):
			logger.V(level).Info("Objects of an earlier mode or service proxy stay until their connections have ended", "reason", err.Error())
			level = 4
			time.AfterFunc(drainRecheck, r.Run)
		default:
			return err
		}
		doubts.Clear(engine.LeftoverRules, "")
		return nil
	}, runner.Settings{
		RetryMin: 10 * time.Second, RetryMax: 10 * time.Minute,
		Failed: func(_ context.Context, err error, wait time.Duration) {
			doubts.Set(engine.Doubt{
				Kind:   engine.LeftoverRules,
				Reason: "what an earlier mode or service proxy left cannot be removed, and may send connections to endpoints that are gone: " + oneLine(err),
				Next:   "the removal is tried again; kube-proxy --cleanup on the node removes what this process cannot",
				NextAt: time.Now().Add(wait),
			})
			logger.Error(err, "Could not remove all objects of an earlier mode or service proxy, will retry", "retryIn", wait)
		},
	})
	select {
	case <-s.ready:
		r.Run()
	case <-ctx.Done():
	}
	return r.Loop(ctx)
}

// drainRecheck is how often takeOver checks whether open connections have ended.
const drainRecheck = 10 * time.Second

// oneLine returns the text of joined errors on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// onlyErrors reports whether every error that err wraps or joins is one of known.
func onlyErrors(err error, known ...error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(e error) bool { return !onlyErrors(e, known...) })
	case interface{ Unwrap() error }:
		return onlyErrors(e.Unwrap(), known...)
	default:
		return slices.Contains(known, err)
	}
}

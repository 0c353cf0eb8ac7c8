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
	"sluice/internal/kernel/sysctl"
	"sluice/internal/platform"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/runner"
	"sluice/internal/source/manifest"
)

// initialise does what needs more privileges than serving, and needs no API
// server for it.
func initialise(ctx context.Context, p plan) error {
	c := p.config
	// The kernel loads what it needs for the probe, connection tracking among
	// it, so that its settings are there to be set. Whether programs can be attached
	// to sockets is for the daemon to find out, which has the mounts for it.
	o := *p.options
	o.EBPF.Fallback = true
	mode, settings, err := o.probeMode(ctx, c)
	if err != nil {
		return err
	}
	fitHost(ctx, p)
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

// fitHost fits the host to the proxy. What cannot be had is logged, returned, and
// no reason to stop.
func fitHost(ctx context.Context, p plan) []platform.Problem {
	logger := klog.FromContext(ctx)
	if runtime.GOOS == systemWindows {
		if err := setPriority(p.priority); err != nil {
			logger.Error(err, "The priority class stays as it is", "wanted", p.options.Windows.PriorityClass)
		}
		return nil
	}
	report := platform.Apply(ctx, sysctl.Kernel{}, &p.config)
	if p.options.Traffic.Level == countBytes {
		report.CountBytes(ctx, sysctl.Kernel{})
	}
	for _, ch := range report.Changes {
		logger.Info("Changed a setting of the host", "name", ch.Name, "old", ch.Old, "new", ch.New)
	}
	for _, p := range report.Problems {
		logger.Info("Setting of the host is not as it should be", "problem", p.String())
	}
	return report.Problems
}

// nodeName returns the name of this node as its Node object has it: the
// override if there is one, else the host's name.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("ask the host for its name (--hostname-override gives another): %w", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", errors.New("the host's name is blank (--hostname-override gives another)")
	}
	return name, nil
}

// enabledFamilies returns those that this host has switched on, and why one is missing.
// On Windows the mode knows.
func enabledFamilies() ([]proxy.Family, string) {
	if runtime.GOOS == systemWindows {
		return proxy.Families[:], ""
	}
	return hostFamilies(os.DirFS("/proc"))
}

// hostFamilies returns the families that the host has switched on, and why one
// is missing. A kernel without IPv6 and one that has it disabled are alike.
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

// chooseMode returns the mode that the host needs, or else the best that the
// kernel can do.
func chooseMode(ctx context.Context, s dataplane.Settings) (config.ProxyMode, error) {
	s.Families, _ = enabledFamilies()
	return choose(ctx, dataplane.Modes(), s)
}

func choose(ctx context.Context, modes []dataplane.Mode, s dataplane.Settings) (config.ProxyMode, error) {
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
func (o *Options) probeMode(ctx context.Context, c config.Configuration) (dataplane.Mode, dataplane.Settings, error) {
	mode, err := dataplane.Of(c.Mode)
	if err != nil {
		return mode, dataplane.Settings{}, err
	}
	s, err := probe(ctx, mode, o.settingsOf(c))
	return mode, s, err
}

// settingsOf returns what modes are told by flags and the configuration.
func (o *Options) settingsOf(c config.Configuration) dataplane.Settings {
	v, w, e := c.Object.IPVS, c.Object.Winkernel, o.EBPF
	e.Untracked, _ = ranges(untrackedCIDRs, o.Untracked) // which the plan has checked
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

// probe returns how to open a mode: with the families that both the host and the
// mode can serve.
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

// rules returns the rules by which rows are made.
func (p plan) rules(ctx context.Context, families []proxy.Family) (resolve.Settings, error) {
	c := p.config
	s := resolve.Settings{
		NodeName:          p.node,
		NodeExpected:      p.from.manifests == "",
		Families:          families,
		MasqueradeAll:     c.MasqueradeAll,
		NodePortAddresses: resolve.NodePortAddresses(c.NodePortAddresses),

		IgnoreExternalIPs:  !c.Gates().Enabled(config.GateExternalIPs),
		LocalhostNodePorts: c.LocalhostNodePorts,
		Allowed:            p.allowed,
		Balancing:          p.balancing,
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
	if !hasNode(objects, p.node) {
		s.NodePortAddresses.Primary = false
		klog.FromContext(ctx).Info("No Node object tells the node's addresses, NodePorts are open on every local address",
			"node", p.node, "folder", p.from.manifests)
	}
	return s, nil
}

func hasNode(objects []metav1.Object, name string) bool {
	return slices.ContainsFunc(objects, func(o metav1.Object) bool {
		n, ok := o.(*v1.Node)
		return ok && n.Name == name
	})
}

// detection sets how our pods' traffic is recognised.
func (p plan) detection(ctx context.Context, s *resolve.Settings) {
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
			klog.FromContext(ctx).Info("Without a cluster CIDR pods cannot be told from other clients, ClusterIP traffic is not masqueraded")
		}
	}
}

// takeOver removes what kube-proxy and our own other modes left, once our rules
// are in force: never before, so that there is no moment without rules. What is
// left would go on sending connections to endpoints that have long gone. It tries
// again with growing waits what may yet succeed, looks again soon at what open
// connections need, and then has nothing more to do until ctx ends.
func (s *ProxyServer) takeOver(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	level := 0 // of saying that connections are open
	var r *runner.BoundedFrequencyRunner
	r = runner.New("remove what is left", func(ctx context.Context) error {
		removed, err := dataplane.Cleanup(ctx, s.plan.options.settingsOf(s.plan.config), s.dataplane)
		for _, what := range removed {
			logger.Info("Removed what another service proxy left", "what", what)
		}
		switch {
		case err == nil:
		case only(err, proxy.ErrInUse):
			logger.Info("Some of what another service proxy left stays, another process uses it", "reason", err.Error())
		case only(err, proxy.ErrInUse, proxy.ErrDraining):
			logger.V(level).Info("Some of what another service proxy left stays for a while", "reason", err.Error())
			level = 4 // once is enough
			time.AfterFunc(untilLookingAgain, r.Run)
		default:
			return err
		}
		return nil
	}, runner.Settings{
		RetryMin: 10 * time.Second, RetryMax: time.Hour,
		Failed: func(_ context.Context, err error, wait time.Duration) {
			logger.Error(err, "Some of what another service proxy left is still there, will try again", "retryIn", wait)
		},
	})
	select {
	case <-s.ready:
		r.Run()
	case <-ctx.Done():
	}
	return r.Loop(ctx)
}

// untilLookingAgain is how long what open connections need stays after them, at most.
const untilLookingAgain = 10 * time.Second

// only reports whether all that is wrong is one of some errors.
func only(err error, known ...error) bool {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(e error) bool { return !only(e, known...) })
	case interface{ Unwrap() error }:
		return only(e.Unwrap(), known...)
	default:
		return slices.Contains(known, err)
	}
}

package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"k8s.io/klog/v2"

	"sluice/internal/config"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/platform"
	"sluice/internal/proxy"
)

// initialise does what needs more privileges than serving, and needs no API
// server for it.
func initialise(ctx context.Context, c config.Configuration) error {
	// The kernel loads what it needs for the probe, connection tracking among
	// it, so that its settings are there to be set.
	mode, settings, err := probeMode(ctx, c)
	if err != nil {
		return err
	}
	fitHost(ctx, c)
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
func fitHost(ctx context.Context, c config.Configuration) []platform.Problem {
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

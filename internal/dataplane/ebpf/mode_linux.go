package ebpf

import (
	"context"
	"fmt"
	"os"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
)

// Mode returns mode ebpf.
func Mode() mode.Mode {
	base := nftables.Mode()
	return mode.Mode{
		Name: "ebpf", Probe: Probe, Open: openOrFallBack, Cleanup: Cleanup, Render: Render,
		Prepare: base.Prepare, Flows: base.Flows, Ends: base.Ends, Balancing: base.Balancing,
		Unseen: "those translated at sockets",
	}
}

// findPaths returns the paths of the settings, checked, with the cgroup of the host if the
// settings have none.
func findPaths(s mode.Settings) (paths, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return paths{}, fmt.Errorf("read mounts: %w", err)
	}
	return paths{s.EBPF.CgroupRoot, s.EBPF.BPFRoot}.resolve(string(mounts))
}

// Probe returns the families that the kernel supports. It loads the programs and unloads
// them again. Before that it reads the cookie of the network namespace, as Open does: a
// kernel that has none (before 5.14) may refuse maps because of the limit on locked memory,
// with the error of missing privileges.
func Probe(ctx context.Context, s mode.Settings) ([]proxy.Family, error) {
	families, err := overlay(s, func() nftables.Untracked { return nftables.Untracked{Within: s.EBPF.Untracked, Begun: true} }).Probe(ctx, s)
	if err != nil {
		return nil, err
	}
	_, err = findPaths(s)
	if err == nil {
		_, err = netnsCookie()
	}
	if err == nil {
		var k *kernel
		if k, err = load(paths{}, nil); err == nil {
			err = k.close()
		}
	}
	if err != nil && !s.EBPF.Fallback {
		return nil, err
	}
	return families, nil
}

// openOrFallBack opens the mode. If that fails and the settings allow it, it opens mode
// nftables instead.
func openOrFallBack(ctx context.Context, s mode.Settings) (proxy.Dataplane, error) {
	d, err := Open(ctx, s)
	switch {
	case err == nil:
		return d, nil
	case !s.EBPF.Fallback:
		return nil, err
	}
	klog.FromContext(ctx).Error(err, "Mode ebpf is not available, falling back to mode nftables")
	return nftables.Mode().Open(ctx, s)
}

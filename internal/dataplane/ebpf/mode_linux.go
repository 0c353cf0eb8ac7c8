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

// Mode is the ebpf mode.
func Mode() mode.Mode {
	base := nftables.Mode()
	return mode.Mode{
		Name: "ebpf", Probe: Probe, Open: openOrFallBack, Cleanup: Cleanup, Render: Render,
		Prepare: base.Prepare, Flows: base.Flows, Ends: base.Ends, Balancing: base.Balancing,
		Unseen: "those translated at sockets",
	}
}

// placesOf returns where the mode meets the host.
func placesOf(s mode.Settings) (places, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return places{}, fmt.Errorf("read mounts: %w", err)
	}
	return places{s.EBPF.CgroupRoot, s.EBPF.BPFRoot}.find(string(mounts))
}

// Probe returns the families that the kernel can do. It loads the programs, and
// lets them go. It asks for a cookie first, as Open does: a kernel that has none (before
// 5.14) may refuse maps for their locked memory, as if privileges were missing.
func Probe(ctx context.Context, s mode.Settings) ([]proxy.Family, error) {
	can, err := rules(s, func() nftables.Untracked { return nftables.Untracked{Within: s.EBPF.Untracked, Begun: true} }).Probe(ctx, s)
	if err != nil {
		return nil, err
	}
	_, err = placesOf(s)
	if err == nil {
		_, err = ownCookie()
	}
	if err == nil {
		var k *kernel
		if k, err = load(places{}, nil); err == nil {
			err = k.close()
		}
	}
	if err != nil && !s.EBPF.Fallback {
		return nil, err
	}
	return can, nil
}

// openOrFallBack returns the rules alone where the mode cannot be had, if that was
// asked for.
func openOrFallBack(ctx context.Context, s mode.Settings) (proxy.Dataplane, error) {
	d, err := Open(ctx, s)
	switch {
	case err == nil:
		return d, nil
	case !s.EBPF.Fallback:
		return nil, err
	}
	klog.FromContext(ctx).Error(err, "Mode ebpf cannot be had here, the rules of mode nftables serve alone")
	return nftables.Mode().Open(ctx, s)
}

package ebpf_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance"
	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// bpffs mounts a BPF file system for the test.
func bpffs(t *testing.T) string {
	t.Helper()
	lab.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// underTest returns the dataplane for the packet table.
func underTest(t *testing.T) conformance.Dataplane {
	return underTestAs(t, mode.EBPF{}, func(d *ebpf.Dataplane) proxy.Dataplane { return d })
}

// underTestAs returns the dataplane for the packet table, with options, and wrapped by as.
func underTestAs(t *testing.T, options mode.EBPF, as func(*ebpf.Dataplane) proxy.Dataplane) conformance.Dataplane {
	root := bpffs(t)
	return conformance.Dataplane{
		Mode: "nftables", // the cases apply that need the settings of mode nftables
		Sockets: &conformance.Sockets{
			Open: func(ctx context.Context, cgroup string) (proxy.Dataplane, error) {
				options := options // a copy, since several are open at the same time
				options.CgroupRoot, options.BPFRoot = cgroup, filepath.Join(root, filepath.Base(cgroup))
				d, err := ebpf.Open(ctx, mode.Settings{MasqueradeBit: 14, EBPF: options})
				if err != nil {
					return nil, err
				}
				if m, ok := mutants[os.Getenv(mutant)]; ok {
					return &mutatedDataplane{d, m.mutate}, nil
				}
				return as(d), nil
			},
			Translated: func(d proxy.Dataplane, fd int) (bool, error) {
				return d.(interface{ Translated(fd int) (bool, error) }).Translated(fd)
			},
		},
	}
}

// TestConformance runs the packet table with real packets.
func TestConformance(t *testing.T) { conformance.Run(t, underTest(t)) }

// TestBridged runs it on a node whose pods share a bridge with br_netfilter.
func TestBridged(t *testing.T) { conformance.RunBridged(t, underTest(t)) }

// TestRandom compares random states and packets with the oracle.
func TestRandom(t *testing.T) { conformance.RunRandom(t, underTest(t), 1, 30) }

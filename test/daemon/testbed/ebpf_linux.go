package testbed

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
)

// EBPFFlags returns the flags that name a cgroup and a folder of a BPF file system for mode ebpf,
// both made for the test.
func EBPFFlags(t *testing.T) []string {
	t.Helper()
	lab.Require(t)
	cgroups, err := traffic.NewCgroups()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroups.Close(); err != nil {
			t.Error(err)
		}
	})
	cgroup, err := cgroups.Add()
	if err != nil {
		t.Fatal(err)
	}
	bpf, err := cgroups.MountBPF()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--cgroup-root", cgroup, "--bpf-root", filepath.Join(bpf, "sluice")}
}

// Pins returns the folder of what mode ebpf keeps in the kernel; empty in other modes.
func (b *Testbed) Pins() string {
	if i := slices.Index(b.Flags, "--bpf-root"); i >= 0 {
		return b.Flags[i+1]
	}
	return ""
}

// EachEntry does something to all entries of a map of mode ebpf.
func (b *Testbed) EachEntry(name string, do func(m *ebpf.Map, key, value []byte) error) error {
	pins, err := filepath.Glob(filepath.Join(b.Pins(), "maps-*", name))
	if err != nil || len(pins) != 1 {
		return fmt.Errorf("maps %v below %s, error %w", pins, b.Pins(), err)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		return err
	}
	var key, value []byte
	for all := m.Iterate(); all.Next(&key, &value); {
		if failed := do(m, key, value); !errors.Is(failed, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return errors.Join(err, m.Close())
}

// DeleteEntry is for [Testbed.EachEntry].
func DeleteEntry(m *ebpf.Map, key, _ []byte) error { return m.Delete(key) }

package ebpf_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/version"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/mode"
)

// TestProbe: a kernel from 6.2 on can do it; an older one says what it lacks in one
// line, and serves by the rules if that was asked for.
func TestProbe(t *testing.T) {
	lab.Require(t)
	cgroups, err := traffic.NewCgroups()
	if err != nil {
		t.Fatal(err)
	}
	defer cgroups.Close()
	s := mode.Settings{MasqueradeBit: 14, EBPF: mode.EBPF{BPFRoot: filepath.Join(bpffs(t), "sluice")}}
	if s.EBPF.CgroupRoot, err = cgroups.Add(); err != nil {
		t.Fatal(err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	able := version.MustParseGeneric(release).AtLeast(version.MustParseGeneric("6.2"))
	can, err := ebpf.Probe(t.Context(), s)
	t.Logf("Linux %s: %v, %v", release, can, err)
	switch {
	case able && (err != nil || len(can) != 2):
		t.Errorf("families %v, %v; want both", can, err)
	case !able && (err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "the kernel lacks what mode ebpf needs (Linux 6.2 with BTF, CONFIG_CGROUP_BPF): ")):
		t.Errorf("error %v; want one line that says what is needed", err)
	}
	s.EBPF.Fallback = true
	if can, err := ebpf.Mode().Probe(t.Context(), s); err != nil || len(can) != 2 {
		t.Errorf("with a fallback: families %v, %v; want both", can, err)
	}
	d, err := ebpf.Mode().Open(t.Context(), s)
	if err != nil {
		t.Fatalf("open with a fallback: %v", err)
	}
	defer d.Close()
	if _, own := d.(*ebpf.Dataplane); own != able {
		t.Errorf("the mode itself was opened: %t", own)
	}
	if _, err := os.Stat(s.EBPF.BPFRoot); (err == nil) != able {
		t.Errorf("maps are kept: %t", err == nil)
	}
}

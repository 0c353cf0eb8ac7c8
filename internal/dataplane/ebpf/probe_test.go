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

// TestProbe checks that Linux 6.2 and later support the mode, and that for older kernels the
// error says in one line what is needed, and the fallback works.
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
	supported := version.MustParseGeneric(release).AtLeast(version.MustParseGeneric("6.2"))
	can, err := ebpf.Probe(t.Context(), s)
	t.Logf("Linux %s: %v, %v", release, can, err)
	switch {
	case supported && (err != nil || len(can) != 2):
		t.Errorf("families %v, error %v; want both", can, err)
	case !supported && (err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "the kernel lacks what mode ebpf needs (Linux 6.2 with BTF, CONFIG_CGROUP_BPF): ")):
		t.Errorf("error %v; want one line that says what is needed", err)
	}
	s.EBPF.Fallback = true
	if can, err := ebpf.Mode().Probe(t.Context(), s); err != nil || len(can) != 2 {
		t.Errorf("with a fallback: families %v, error %v; want both", can, err)
	}
	d, err := ebpf.Mode().Open(t.Context(), s)
	if err != nil {
		t.Fatalf("open with a fallback: %v", err)
	}
	defer d.Close()
	if _, own := d.(*ebpf.Dataplane); own != supported {
		t.Errorf("mode ebpf was opened: %t", own)
	}
	if _, err := os.Stat(s.EBPF.BPFRoot); (err == nil) != supported {
		t.Errorf("the directory of maps exists: %t", err == nil)
	}
}

package cluster

import (
	"bytes"
	"flag"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/test/vm/guest"
)

var (
	kernel     = flag.String("kernel", "6.1", "the `VERSION` that TestInGuest boots")
	guestTests = flag.String("guest-tests", "TestModeChanges", "run these tests there; TestTakeoverFromIPVS is one, too")
	guestModes = flag.String("guest-modes", "nftables,iptables,ipvs", "with these modes; userspace takes the machine minutes")
)

// TestInGuest runs tests under a kernel with IPVS, in a virtual machine: by default
// the changes between mode ipvs and those that rules are all of.
func TestInGuest(t *testing.T) {
	var out bytes.Buffer
	job := guest.Job{Kernel: *kernel, Timeout: 20 * time.Minute, Output: &out, Command: []string{
		"-test.v", "-test.run=^(" + *guestTests + ")$", "-modes=" + *guestModes, "-in-memory",
		"-daemon=/programs/sluice", "-kube-proxy=/programs/kube-proxy",
	}}
	tests := filepath.Join(t.TempDir(), "tests")
	s, err := programs(t.Context())
	if err == nil {
		err = guest.Compile(t.Context(), ".", tests)
	}
	if err == nil {
		err = job.RunTests(".", tests)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"sluice": s.Proxy, "kube-proxy": s.KubeProxy} {
		job.Add(path.Join("/programs", name), file)
	}
	cache, err := guest.Open(func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	status, err := cache.Run(t.Context(), job)
	if err != nil || status != 0 {
		t.Fatalf("status %d: %v\n%s", status, err, &out)
	}
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, " -> ") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

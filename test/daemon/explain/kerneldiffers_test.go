package explain

import (
	"strings"
	"testing"

	"sluice/test/daemon/testbed"
)

// meddlers change, by mode, what a Service with endpoint 10.0.0.11:8080 has; words are
// what explain says of it. The daemon may be faster, so it is done again and again.
var meddlers = map[string]struct {
	meddle func(*testbed.Testbed)
	words  string
}{
	"nftables": {func(bed *testbed.Testbed) { bed.Run("nft", "flush map ip sluice endpoints") }, "10.0.0.11 . 8080"},
	"iptables": {func(bed *testbed.Testbed) { bed.Run("iptables-nft", "-t", "nat", "-F", "KUBE-SERVICES") }, "-A KUBE-SERVICES -d 172.30.0.10/32"},
	"ipvs": {func(bed *testbed.Testbed) {
		bed.Run("sh", "-c", "ipvsadm -d -t 172.30.0.10:80 -r 10.0.0.11:8080 || true")
	}, "-a -t 172.30.0.10:80 -r 10.0.0.11:8080 -m -w 1"},
	"userspace": {func(bed *testbed.Testbed) { bed.Run("sh", "-c", "ip rule del priority 10270 || true") }, "ip rule add fwmark"},
	"ebpf": {func(bed *testbed.Testbed) {
		if err := bed.EachEntry("endpoints", testbed.DeleteEntry); err != nil {
			bed.T.Fatal(err)
		}
	}, "10.0.0.11:8080"},
}

// TestExplainDiffers changes the kernel objects of a Service from another process: explain reports
// the difference in every mode, also by its exit code.
func TestExplainDiffers(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Start(nil)
			bed.AwaitSync()
			if text, code := bed.Sluice("explain", "default/web"); code != 0 || !strings.Contains(text, "agrees") {
				t.Fatalf("exit %d\n%s", code, text)
			}
			words := strings.Join(strings.Fields(meddlers[mode].words), " ")
			testbed.Eventually(t, "what differs", func() bool {
				meddlers[mode].meddle(bed)
				text, code := bed.Sluice("explain", "default/web")
				return code == 1 && strings.Contains(text, "DIFFERS") && strings.Contains(strings.Join(strings.Fields(text), " "), words)
			})
		})
	}
}

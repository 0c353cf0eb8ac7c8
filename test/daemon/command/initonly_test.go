package command

import (
	"os/exec"
	"testing"

	"sluice/test/daemon/testbed"
)

// TestInitOnly prepares the node without an API server, and without rules but
// those that keep others from loopback.
func TestInitOnly(t *testing.T) {
	bed := testbed.New(t)
	d := bed.Start(func(c *exec.Cmd) {
		c.Args = append(c.Args[:1], "--init-only", "--conntrack-udp-timeout", "77s", "--oom-score-adj", "0")
	})
	if code := d.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := bed.Run("cat", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"); got != "77\n" {
		t.Errorf("the UDP time-out is %q", got)
	}
	if got := bed.Tables(); got != "table ip sluice" || localnet(bed) != "1" {
		t.Errorf("the kernel has %q, route_localnet is %s", got, localnet(bed))
	}
}

package command

import (
	"net/http"
	"strings"
	"testing"

	"sluice/test/daemon/testbed"
)

// TestOneFamilyWithoutNAT runs on a node whose IPv6 has no table nat. The other
// family is served, the daemon is healthy, and both the log and the health
// report tell.
func TestOneFamilyWithoutNAT(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Run("iptables-"+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			without := bed.WrapProgram("ip6tables-"+variant+"-restore", `input=$(cat)
case "$input" in *"*nat"*)
	echo "ip6tables-restore: line 1: can't initialize ip6tables table 'nat': Table does not exist (do you need to insmod?)" >&2
	exit 3;;
esac
printf '%s\n' "$input" | $REAL "$@"`)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("six.yaml", testbed.Service("six", testbed.ClusterV6, testbed.PodV6))
			d := bed.Start(without, "--proxy-mode", "iptables")
			testbed.Eventually(t, "the IPv4 Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			var body string
			testbed.Eventually(t, "health", func() bool {
				code, text := bed.Health()
				body = text
				return code == http.StatusOK
			})
			if !strings.Contains(body, `"IPv4"`) || strings.Contains(body, `"IPv6"`) {
				t.Errorf("health report %s; want a status of IPv4 only", body)
			}
			if n := strings.Count(d.Log(), "Serving the other family only"); n != 1 || !strings.Contains(d.Log(), "do you need to insmod?") {
				t.Errorf("the log says %d times that a family is not served", n)
			}
			if strings.Contains(d.Log(), "Sync failed") {
				t.Error("syncs fail")
			}
		})
	}
}

// TestFamilies runs on a node without IPv6, and serves both where there are both.
func TestFamilies(t *testing.T) {
	for _, c := range []struct {
		name    string
		disable string
		tables  string
		v6      bool
	}{
		{"both", "0", "table ip sluice\ntable ip6 sluice", true},
		{"without IPv6", "1", "table ip sluice", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Run("sh", "-c", "echo "+c.disable+" >/proc/sys/net/ipv6/conf/all/disable_ipv6")
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("six.yaml", testbed.Service("six", testbed.ClusterV6, testbed.PodV6))
			bed.Start(nil)
			testbed.Eventually(t, "the IPv4 Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			if c.v6 {
				testbed.Eventually(t, "the IPv6 Service", bed.Answers(testbed.ClusterV6, testbed.PodV6))
			}
			if got := bed.Tables(); got != c.tables {
				t.Errorf("the kernel has %q, want %q", got, c.tables)
			}
		})
	}
}

package foreign

import (
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/test/daemon/testbed"
)

// TestAttack runs another process that continuously writes and flushes rules, and kills daemons at
// any moment, while endpoints change. Afterwards the rules equal a fresh rendering.
func TestAttack(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Run("iptables-"+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("six.yaml", testbed.Service("six", testbed.ClusterV6, testbed.PodV6))
			bed.Write("kinds.yaml", testbed.AllKinds)
			t.Run("under attack", func(t *testing.T) {
				bed := bed.For(t)
				churnEndpoints(bed)
				runUntilEnd(bed, "for p in iptables ip6tables; do $p-"+variant+" -w -t nat -A PREROUTING -p udp -j ACCEPT; "+
					"$p-"+variant+" -w -t nat -D PREROUTING -p udp -j ACCEPT; done")
				for i := range 6 {
					d := bed.Start(nil, "--proxy-mode", "iptables")
					if i%2 == 0 {
						testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
						bed.Run("sh", "-c", "for p in iptables ip6tables; do for t in nat filter mangle; do $p-"+variant+" -w -t $t -F; done; done")
						testbed.Eventually(t, "the Service after a flush", bed.Answers(testbed.ClusterIP, testbed.PodA))
						testbed.Eventually(t, "the IPv6 Service after a flush", bed.Answers(testbed.ClusterV6, testbed.PodV6))
					} else {
						d.AwaitLog("Using iptables")
					}
					d.End(syscall.SIGKILL)
				}
			})
			d := bed.Start(nil, "--proxy-mode", "iptables")
			d.AwaitFirstSync()
			testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			testbed.Eventually(t, "the IPv6 Service", bed.Answers(testbed.ClusterV6, testbed.PodV6))
			d.End(syscall.SIGTERM)
			before := savedRules(bed, variant)
			d = bed.Start(nil, "--proxy-mode", "iptables")
			d.AwaitFirstSync()
			if diff := cmp.Diff(before, savedRules(bed, variant)); diff != "" {
				t.Errorf("a fresh daemon finds something to mend (-before +after):\n%s", diff)
			}
		})
	}
}

// runUntilEnd runs a script on the node again and again until the test ends.
func runUntilEnd(bed *testbed.Testbed, script string) {
	bed.T.Helper()
	cmd := exec.Command("sh", "-c", "while :; do "+script+"; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := bed.Lab.Node().Start(cmd); err != nil {
		bed.T.Fatal(err)
	}
	bed.T.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		_ = cmd.Wait()
	})
}

// savedRules returns the rules of both families, sorted, without counters.
func savedRules(bed *testbed.Testbed, variant string) []string {
	bed.T.Helper()
	out := bed.Run("sh", "-c", "iptables-"+variant+"-save; ip6tables-"+variant+"-save")
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "#") {
			line, _, _ = strings.Cut(line, " [")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}

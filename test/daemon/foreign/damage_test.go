package foreign

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice/test/daemon/testbed"
)

// TestDamageIsRepaired removes rules from another process while endpoints change continuously.
// Traffic recovers by itself.
func TestDamageIsRepaired(t *testing.T) {
	damage := map[string]string{
		"flush of all tables":     "for t in nat filter mangle; do PROGRAM -t $t -F; done",
		"flush of a shared chain": "PROGRAM -t nat -F KUBE-SERVICES",
		"one rule of it deleted":  "PROGRAM -t nat -D KUBE-SERVICES $(PROGRAM -t nat -L KUBE-SERVICES -n --line-numbers | grep 'web:http' | cut -d' ' -f1)",
		"flush of an own chain":   "PROGRAM -t nat -F $(PROGRAM -t nat -S | grep 'web:http' | grep -o 'KUBE-SVC-[A-Z0-9]*' | head -n 1)",
	}
	for _, variant := range []string{"nft", "legacy"} {
		for name, script := range damage {
			for _, vip := range []netip.AddrPort{testbed.ClusterIP, testbed.ClusterV6} {
				program, by := "iptables-"+variant, testbed.PodA
				if vip.Addr().Is6() {
					program, by = "ip6tables-"+variant, testbed.PodV6
				}
				t.Run(program+"/"+name, func(t *testing.T) {
					bed := testbed.New(t)
					for _, p := range []string{"iptables-", "ip6tables-"} {
						bed.Run(p+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
					}
					bed.Write("web.yaml", testbed.Service("web", vip, by))
					bed.Start(nil, "--proxy-mode", "iptables")
					testbed.Eventually(t, "the Service", bed.Answers(vip, by))
					churnEndpoints(bed)
					bed.Run("sh", "-ec", strings.ReplaceAll(script, "PROGRAM", program))
					began := time.Now()
					testbed.Eventually(t, "the Service after the damage", bed.Answers(vip, by))
					if took := time.Since(began); took > testbed.RepairTime {
						t.Errorf("repaired after %v, want at most %v", took, testbed.RepairTime)
					}
				})
			}
		}
	}
}

// churnEndpoints changes the endpoints of another Service fifty times a second until the
// test ends.
func churnEndpoints(bed *testbed.Testbed) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-end:
				return
			case <-tick.C:
				bed.Write("churn.yaml", testbed.Service("churn", testbed.SecondIP, netip.MustParseAddr(fmt.Sprintf("10.0.1.%d", i%200))))
			}
		}
	}()
	bed.T.Cleanup(func() { close(end); <-ended })
}

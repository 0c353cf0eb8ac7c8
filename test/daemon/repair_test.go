package daemon

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// repairTime is a second, and what a busy machine adds to it.
const repairTime = 3 * time.Second

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
			for _, vip := range []netip.AddrPort{clusterIP, clusterV6} {
				program, by := "iptables-"+variant, podA
				if vip.Addr().Is6() {
					program, by = "ip6tables-"+variant, podV6
				}
				t.Run(program+"/"+name, func(t *testing.T) {
					s := newSite(t)
					for _, p := range []string{"iptables-", "ip6tables-"} {
						s.run(p+variant, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
					}
					s.write("web.yaml", service("web", vip, by))
					s.start(nil, "--proxy-mode", "iptables")
					eventually(t, "the Service", s.answers(vip, by))
					s.churn()
					s.run("sh", "-ec", strings.ReplaceAll(script, "PROGRAM", program))
					began := time.Now()
					eventually(t, "the Service after the damage", s.answers(vip, by))
					if took := time.Since(began); took > repairTime {
						t.Errorf("repaired after %v, want at most %v", took, repairTime)
					}
				})
			}
		}
	}
}

// churn changes the endpoints of another Service fifty times a second until the
// test ends.
func (s *site) churn() {
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
				s.write("churn.yaml", service("churn", secondIP, netip.MustParseAddr(fmt.Sprintf("10.0.1.%d", i%200))))
			}
		}
	}()
	s.t.Cleanup(func() { close(end); <-ended })
}

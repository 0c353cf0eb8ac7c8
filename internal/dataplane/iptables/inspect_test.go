package iptables

import (
	"strings"
	"testing"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestInspect checks that rows that are as written have no differences, and that changes by
// another program are reported.
func TestInspect(t *testing.T) {
	variants(t, func(t *testing.T, d *Dataplane) {
		s := everyState()
		proxytest.MustSync(t, d, s)
		inspect := func(key proxy.PortKey) []proxy.Difference {
			t.Helper()
			got, err := d.Inspect(t.Context(), proxy.Inspection{Row: key})
			if err != nil || got.Objects < 10 || got.Unread != "" {
				t.Fatalf("%+v, error %v", got, err)
			}
			return got.Differences
		}
		for key := range s.Rows {
			if diff := inspect(key); diff != nil {
				t.Errorf("%v as it was written: %+v", key, diff)
			}
		}
		run := func(args ...string) {
			t.Helper()
			runHost(t, ipt.Name(ipt.IPv4, d.variant), args...)
		}
		keys := plainState(3).Keys()
		own := clusterChain + hash(keys[0], "")
		run("-t", "nat", "-A", own, "-j", "RETURN")
		diff := inspect(keys[0])
		if len(diff) != 1 || diff[0].Object != "table nat chain "+own || !strings.HasSuffix(diff[0].Have, "; -A "+own+" -j RETURN") {
			t.Errorf("with one rule more: %+v", diff)
		}
		run("-t", "nat", "-F", own)
		if diff := inspect(keys[0]); len(diff) != 1 || diff[0].Have != "no rules" {
			t.Errorf("with an empty chain: %+v", diff)
		}
		run("-t", "nat", "-F", kubeServices)
		if diff := inspect(keys[1]); len(diff) == 0 || diff[0].Object != "table nat chain "+kubeServices || !strings.Contains(diff[0].Want, "--comment") {
			t.Errorf("without the rules of Services: %+v", diff)
		}
		run("-t", "nat", "-D", "PREROUTING", "1")
		if diff := inspect(keys[2]); len(diff) < 2 || !strings.Contains(diff[0].Object+diff[1].Object+diff[len(diff)-1].Object, "PREROUTING") {
			t.Errorf("without the jumps from built-in chains: %+v", diff)
		}
	})
}

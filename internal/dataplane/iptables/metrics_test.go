package iptables

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/proxy/proxytest"
)

// TestMetrics checks that metrics have kube-proxy's names, and that failures are counted.
func TestMetrics(t *testing.T) {
	d, _ := faked()
	var got []string
	for _, m := range d.Metrics(t.Context()) {
		got = append(got, fmt.Sprintf("%s grows=%t %q", m.Name, m.Grows, m.Labels))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{
		`iptables_ct_state_invalid_dropped_packets_total grows=true []`,
		`iptables_localhost_nodeports_accepted_packets_total grows=true []`,
		`sync_proxy_rules_iptables_last grows=false ["table" "ip_family"]`,
		`sync_proxy_rules_iptables_partial_restore_failures_total grows=true ["ip_family"]`,
		`sync_proxy_rules_iptables_restore_failures_total grows=true ["ip_family"]`,
		`sync_proxy_rules_iptables_total grows=false ["table" "ip_family"]`,
	}, got); diff != "" {
		t.Errorf("metrics mismatch (-want +got):\n%s", diff)
	}
	d.SyncFailed(true)
	d.SyncFailed(false)
	if n := proxytest.Values(t.Context(), d, "sync_proxy_rules_iptables_restore_failures_total")["IPv4"]; n != 2 {
		t.Errorf("%v failures, want 2", n)
	}
	if n := proxytest.Values(t.Context(), d, "sync_proxy_rules_iptables_partial_restore_failures_total")["IPv4"]; n != 1 {
		t.Errorf("%v partial failures, want 1", n)
	}
}

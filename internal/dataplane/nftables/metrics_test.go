package nftables

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft/nfttest"
	"sluice/internal/proxy/proxytest"
)

// TestMetrics checks that metrics have kube-proxy's names, and that failures are counted.
func TestMetrics(t *testing.T) {
	d := Alone.New(nfttest.NewFake(), mode.Settings{})
	var got []string
	for _, m := range d.Metrics(t.Context()) {
		got = append(got, fmt.Sprintf("%s grows=%t %q", m.Name, m.Grows, m.Labels))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{
		`nftables_affinity_clients grows=false ["ip_family"]`,
		`nftables_affinity_clients_limit grows=false ["ip_family"]`,
		`nftables_localhost_nodeport_rejected_packets_total grows=true ["ip_family" "protocol"]`,
		`sync_proxy_rules_nftables_cleanup_failures_total grows=true ["ip_family"]`,
		`sync_proxy_rules_nftables_sync_failures_total grows=true ["ip_family"]`,
	}, got); diff != "" {
		t.Errorf("metrics mismatch (-want +got):\n%s", diff)
	}
	d.SyncFailed(true)
	d.SyncFailed(false)
	for name, want := range map[string]map[string]float64{
		"sync_proxy_rules_nftables_sync_failures_total":    {"IPv4": 2, "IPv6": 2},
		"sync_proxy_rules_nftables_cleanup_failures_total": {"IPv4": 0, "IPv6": 0},
		"nftables_affinity_clients":                        {}, // Nobody counts them here.
	} {
		if diff := cmp.Diff(want, proxytest.Values(t.Context(), d, name)); diff != "" {
			t.Errorf("%s mismatch (-want +got):\n%s", name, diff)
		}
	}
}

package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/test/cluster/peers/figures"
)

// TestPlan puts every peer at the sizes of its mode, the smallest first.
func TestPlan(t *testing.T) {
	plans, err := plan("sluice/nftables, sluice/iptables,kube-proxy-1.36/nftables", "1000x10,10x10", "1000x10,200x10")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	var order []string
	for _, s := range slices.SortedFunc(maps.Keys(plans), figures.Size.Compare) {
		order = append(order, s.String())
		for _, p := range plans[s] {
			got[s.String()] = append(got[s.String()], p.Name)
		}
	}
	want := map[string][]string{
		"10x10":   {"sluice/nftables", "kube-proxy-1.36/nftables"},
		"200x10":  {"sluice/iptables"},
		"1000x10": {"sluice/nftables", "sluice/iptables", "kube-proxy-1.36/nftables"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("peers by size (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"10x10", "200x10", "1000x10"}, order); diff != "" {
		t.Errorf("order of sizes (-want +got):\n%s", diff)
	}
	for _, bad := range [][3]string{
		{"sluice", "10x10", ""},
		{"other/nftables", "10x10", ""},
		{"sluice/nftables", "10", ""},
		{"sluice/nftables", "10x10", "y"},
	} {
		if got, err := plan(bad[0], bad[1], bad[2]); err == nil {
			t.Errorf("plan%q: got %v, want an error", bad, got)
		}
	}
}

func TestVersionOf(t *testing.T) {
	for path, want := range map[string]string{
		"/x/.cache/kube-proxy-v1.36.3/kube-proxy": "v1.36.3",
		"/x/.cache/sluice":                        `".cache"`,
	} {
		if got := versionOf(path); got != want {
			t.Errorf("versionOf(%q): got %s, want %s", path, got, want)
		}
	}
}

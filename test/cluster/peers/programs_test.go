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
	c := &benchmark{options: options{
		peers: "sluice/nftables, sluice/iptables,kube-proxy-1.36/nftables", sizes: "1000x10,10x10", legacy: "1000x10,200x10",
	}}
	plan, err := c.plan()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	var order []string
	for _, s := range slices.SortedFunc(maps.Keys(plan), figures.Size.Compare) {
		order = append(order, s.String())
		for _, p := range plan[s] {
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
	for _, bad := range []options{
		{peers: "sluice", sizes: "10x10"},
		{peers: "other/nftables", sizes: "10x10"},
		{peers: "sluice/nftables", sizes: "10"},
		{peers: "sluice/nftables", sizes: "10x10", legacy: "y"},
	} {
		if plan, err := (&benchmark{options: bad}).plan(); err == nil {
			t.Errorf("plan of %+v: got %v, want an error", bad, plan)
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

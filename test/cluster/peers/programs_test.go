package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPlan puts every peer at the sizes of its mode, the smallest first.
func TestPlan(t *testing.T) {
	c := &campaign{options: options{
		peers: "sluice/nftables, sluice/iptables,kube-proxy-1.36/nftables", sizes: "1000x10,10x10", legacy: "1000x10,200x10",
	}}
	steps, err := c.plan()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	var order []string
	for _, s := range steps {
		order = append(order, s.size.String())
		for _, p := range s.peers {
			got[s.size.String()] = append(got[s.size.String()], p.Name)
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
		if steps, err := (&campaign{options: bad}).plan(); err == nil {
			t.Errorf("plan of %+v: got %v, want an error", bad, steps)
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

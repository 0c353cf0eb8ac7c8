package conformance

import (
	"fmt"
	"testing"

	"sluice/internal/proxy"
)

// TestShares checks that ten shares have every case of the decision tables once, and that each has
// about as many, from every group, of every verdict and from every place.
func TestShares(t *testing.T) {
	const shares = 10
	seen := map[string]int{}
	all := decisionTables()
	total := 0
	for _, g := range all {
		total += len(g.Cases)
	}
	for n := range shares {
		cases := 0
		has := map[string]bool{}
		for _, g := range (share{n + 1, shares}).groups(all) {
			for _, c := range g.Cases {
				cases++
				seen[g.ID+"/"+c.ID]++
				has[fmt.Sprint(c.Expect.Verdict)], has[string(c.From)], has[g.ID] = true, true, true
			}
		}
		if cases < total/shares-len(all) || cases > total/shares+len(all) {
			t.Errorf("share %d has %d of %d cases", n+1, cases, total)
		}
		for _, want := range []any{proxy.Forward, proxy.Reject, proxy.Drop, FromPod, FromSelf, FromNode, FromOutside, FromRemotePod} {
			if !has[fmt.Sprint(want)] {
				t.Errorf("share %d has no case of %v", n+1, want)
			}
		}
		for _, g := range all {
			if !has[g.ID] {
				t.Errorf("share %d has no case of group %s", n+1, g.ID)
			}
		}
	}
	if len(seen) != total {
		t.Errorf("the shares have %d of %d cases", len(seen), total)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s is in %d shares", id, n)
		}
	}
}

// TestCurrentShare checks how the environment's share is read.
func TestCurrentShare(t *testing.T) {
	for text, want := range map[string]share{"": {1, 1}, "1/10": {1, 10}, "10/10": {10, 10}} {
		t.Setenv(ShareVariable, text)
		if got, err := currentShare(); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"0/10", "11/10", "tenth", "3"} {
		t.Setenv(ShareVariable, text)
		if got, err := currentShare(); err == nil {
			t.Errorf("%q is accepted as %v", text, got)
		}
	}
}

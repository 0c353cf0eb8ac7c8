package conformance

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

// TestRandomGroupsAreRepeatable generates the same groups twice.
func TestRandomGroupsAreRepeatable(t *testing.T) {
	verdicts := map[proxy.Verdict]int{}
	for seed := range uint64(50) {
		first, err := randomGroup(oracleMode, seed)
		if err != nil {
			t.Fatal(err)
		}
		second, err := randomGroup(oracleMode, seed)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range first.Cases {
			verdicts[c.Expect.Verdict]++
			if d := second.Cases[i]; c.to() != d.to() || !c.Expect.equal(d.Expect) {
				t.Errorf("seed %d, %s: %v to %v, then %v to %v", seed, c.ID, c.Expect, c.to(), d.Expect, d.to())
			}
		}
	}
	for _, v := range []proxy.Verdict{proxy.Forward, proxy.Reject, proxy.Drop, proxy.Untouched} {
		if verdicts[v] < 100 {
			t.Errorf("only %d random packets are to be %v", verdicts[v], v)
		}
	}
}

// TestRandomGroupsCanFail runs a random group against a dataplane that does nothing.
func TestRandomGroupsCanFail(t *testing.T) {
	lab.Require(t)
	d := Dataplane{Mode: "nftables", Open: func(context.Context) (proxy.Dataplane, error) { return idle{}, nil }}
	st, err := (&scheduler{d: d}).newTestbed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer st.close()
	st.dropTimeout = answerTimeout
	g, err := randomGroup(d.Mode, 1)
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]int{}, map[string]int{}
	for _, c := range g.Cases {
		if c.Expect.Verdict != proxy.Untouched {
			want[c.ID] = 2
		}
	}
	for _, f := range st.runGroup(t.Context(), g) {
		got[f.id]++
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("failures mismatch (-want +got):\n%s", d)
	}
}

package conformance

import (
	"context"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// idle is a dataplane that does nothing, and so leaves every packet alone.
type idle struct{}

func (idle) Sync(context.Context, *proxy.State) (proxy.Refused, error) { return nil, nil }
func (idle) Apply(context.Context, *proxy.State, *proxy.Changed) (proxy.Refused, error) {
	return nil, nil
}
func (idle) Close() error { return nil }

// TestTheTableCanFail plays the whole table against a dataplane that does
// nothing. Exactly the cases that are to be left alone may pass, in both ways.
func TestTheTableCanFail(t *testing.T) {
	lab.Require(t)
	all, err := load()
	if err != nil {
		t.Fatal(err)
	}
	d := Dataplane{Mode: "nftables", Open: func(context.Context) (proxy.Dataplane, error) { return idle{}, nil }}
	st, err := (&scheduler{d: d}).newTestbed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	st.silence = untilFailure // there is none, so nobody waits for it
	t.Cleanup(func() {
		if err := st.close(); err != nil {
			t.Error(err)
		}
	})
	for _, g := range all.Groups {
		failed := map[string]int{}
		for _, f := range st.runGroup(t.Context(), g) {
			if f.id == "" {
				t.Fatalf("%s: %v", g.ID, f.err)
			}
			failed[f.id]++
		}
		for _, c := range g.Cases {
			want := 2
			if !slices.Contains(g.playing(d.Mode), c) || c.in(d.Mode).Verdict == proxy.Untouched {
				want = 0
			}
			if failed[c.ID] != want {
				t.Errorf("%s/%s: failed %d times, want %d", g.ID, c.ID, failed[c.ID], want)
			}
		}
	}
	for _, s := range all.Stateful {
		if failures := st.runStory(t.Context(), s); len(failures) != 2 {
			t.Errorf("%s: %d failures, want 2: %v", s.ID, len(failures), failures)
		}
	}
}

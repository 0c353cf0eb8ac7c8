package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

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

// TestTheTableCanFail runs the whole table against a dataplane that does nothing. Exactly the cases
// that expect untouched packets may pass, in both ways.
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
	st.dropTimeout = answerTimeout // no case is silent, so nothing waits for it
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
			if !slices.Contains(g.casesFor(d.Mode), c) || c.expected(d.Mode).Verdict == proxy.Untouched {
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

// TestSplitUntried checks that a failure counts even if another way could not be tried, and that no
// errno of the kernel causes a skip.
func TestSplitUntried(t *testing.T) {
	untried := fmt.Errorf("no SCTP: %w", lab.ErrUntried)
	wrong, kernel := errors.New("answered"), fmt.Errorf("send: %w", unix.EOPNOTSUPP)
	for _, tt := range []struct {
		name   string
		errs   []error
		failed []error
		skip   error
	}{
		{"all is well", nil, nil, nil},
		{"untried in both ways", []error{untried, untried}, nil, untried},
		{"wrong in the second", []error{untried, wrong}, []error{wrong}, untried},
		{"the kernel's", []error{kernel}, []error{kernel}, nil},
	} {
		failed, skip := splitUntried(tt.errs)
		if !slices.Equal(failed, tt.failed) || skip != tt.skip {
			t.Errorf("%s: failed %v, not tried for %v; want %v and %v", tt.name, failed, skip, tt.failed, tt.skip)
		}
	}
}

// TestCheckRefused checks cases of a protocol that the mode refuses, by who answers.
func TestCheckRefused(t *testing.T) {
	own, other := netip.MustParseAddrPort("172.30.0.1:80"), netip.MustParseAddrPort("10.0.0.9:80")
	forward := Expect{Verdict: proxy.Forward, To: map[netip.AddrPort]bool{other: false}}
	for _, tt := range []struct {
		name            string
		want            Expect
		answers, others []netip.AddrPort
		untried         bool
	}{
		{"nobody", forward, nil, nil, true},
		{"its endpoint", forward, []netip.AddrPort{other}, nil, false},
		{"its own destination", Expect{Verdict: proxy.Reject}, nil, []netip.AddrPort{own}, true},
		{"another", Expect{Verdict: proxy.Drop}, nil, []netip.AddrPort{own, other}, false},
	} {
		r := caseRun{Case: &Case{Dst: own.Addr(), DPort: own.Port()}, want: tt.want, answers: tt.answers, wrongAnswers: tt.others}
		if err := r.checkRefused("it relays none"); errors.Is(err, lab.ErrUntried) != tt.untried {
			t.Errorf("answered by %s: %v", tt.name, err)
		}
	}
}

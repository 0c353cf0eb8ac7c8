package localnet

import (
	"context"
	"errors"
	"slices"
	"testing"

	"sluice/internal/kernel/sysctl"
	"sluice/internal/kernel/sysctl/sysctltest"
)

// TestSetting goes through the possible histories of the setting. Each step is what a
// dataplane does with a node: it asks for the guard, writes it, and opens loopback if that
// is wanted.
func TestSetting(t *testing.T) {
	readOnly, away := errors.New("read-only file system"), errors.New("no programs")
	guarded, noted := Guard{InForce: true}, Guard{InForce: true, Noted: true}
	tests := []struct {
		name         string
		was          string
		own, others  Traces
		refuse, err  error
		steps        []bool  // whether loopback is wanted
		guards       []Guard // after each
		writes       []string
		ownerUnknown bool
	}{
		{name: "we set it", was: "0", steps: []bool{true, true}, guards: []Guard{noted, noted}, writes: []string{"1"}},
		{name: "nobody wants it", was: "0", steps: []bool{false}, guards: []Guard{{}}},
		{name: "the administrator's", was: "1", steps: []bool{true, false, true}, guards: []Guard{guarded, {}, guarded}},
		{name: "the administrator's, guarded by us", was: "1", own: Traces{Guarded: true}, steps: []bool{true}, guards: []Guard{guarded}},
		{name: "the administrator's, another number", was: "2", steps: []bool{true}, guards: []Guard{guarded}},
		{name: "ours", was: "1", own: Traces{Guarded: true, Noted: true}, others: Traces{Guarded: true}, steps: []bool{true}, guards: []Guard{noted}},
		{name: "ours, not wanted any more", was: "1", own: Traces{Guarded: true, Noted: true}, steps: []bool{false}, guards: []Guard{{}}, writes: []string{"0"}},
		{name: "of our other mode", was: "1", others: Traces{Guarded: true, Noted: true}, steps: []bool{true}, guards: []Guard{noted}},
		{name: "of our other mode, not wanted", was: "1", others: Traces{Guarded: true, Noted: true}, steps: []bool{false}, guards: []Guard{{}}, writes: []string{"0"}},
		{name: "of our other mode, half taken over", was: "1", own: Traces{Guarded: true}, others: Traces{Guarded: true, Noted: true}, steps: []bool{true}, guards: []Guard{noted}},
		{name: "kube-proxy's", was: "1", others: Traces{Proxied: true}, steps: []bool{true}, guards: []Guard{noted}},
		{name: "kube-proxy's, not wanted", was: "1", others: Traces{Proxied: true}, steps: []bool{false}, guards: []Guard{{}}, writes: []string{"0"}},
		{name: "excluded and included live", was: "0", steps: []bool{true, false, true}, guards: []Guard{noted, {}, noted}, writes: []string{"1", "0", "1"}},
		{name: "cannot be opened", was: "0", refuse: readOnly, steps: []bool{true, false}, guards: []Guard{noted, {}}},
		{name: "cannot be closed", was: "1", own: Traces{Guarded: true, Noted: true}, refuse: readOnly, steps: []bool{false, false, true}, guards: []Guard{noted, noted, noted}},
		{name: "others cannot be looked at", was: "1", err: away, steps: []bool{true, false}, guards: []Guard{guarded, {}}, ownerUnknown: true},
		{name: "others need not be looked at", was: "0", err: away, steps: []bool{true}, guards: []Guard{noted}, writes: []string{"1"}},
		{name: "what can be seen of others is enough", was: "1", others: Traces{Guarded: true, Noted: true}, err: away, steps: []bool{true}, guards: []Guard{noted}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := sysctltest.NewFake(map[string]string{Name: tt.was})
			if tt.refuse != nil {
				k.Refuse(Name, tt.refuse)
			}
			s := New(k, func(context.Context) (Traces, error) { return tt.others, tt.err })
			for i, wanted := range tt.steps {
				s.Find(t.Context(), tt.own)
				guard := s.Guard(t.Context(), wanted)
				if guard != tt.guards[i] {
					t.Errorf("step %d: guard %+v, want %+v", i, guard, tt.guards[i])
				}
				s.Open(t.Context())
			}
			var writes []string
			for _, w := range tt.writes {
				writes = append(writes, sysctl.Path(Name)+"="+w)
			}
			if !slices.Equal(k.Writes(), writes) {
				t.Errorf("wrote %q, want %q", k.Writes(), writes)
			}
			if s.OwnerKnown() == tt.ownerUnknown {
				t.Errorf("owner known: %t", s.OwnerKnown())
			}
		})
	}
}

// TestWithoutIPv4 checks that a dataplane without IPv4 guards and opens nothing.
func TestWithoutIPv4(t *testing.T) {
	var s *Setting
	s.Find(t.Context(), Traces{})
	if g := s.Guard(t.Context(), true); g != (Guard{}) || s.OwnerKnown() {
		t.Errorf("guard %+v, owner known %t", g, s.OwnerKnown())
	}
	s.Open(t.Context())
}

// TestPrepare checks that the guard is written before the setting is on, and that the
// setting stays off if the guard cannot be written.
func TestPrepare(t *testing.T) {
	refused := errors.New("refused")
	for _, tt := range []struct {
		name  string
		opens bool
		err   error
		want  string
	}{{"opened", true, nil, "1"}, {"not wanted", false, nil, "0"}, {"no guard", true, refused, "0"}} {
		k := sysctltest.NewFake(map[string]string{Name: "0"})
		guarded := false
		err := New(k, nil).Prepare(t.Context(), Traces{}, tt.opens, func(g Guard) error {
			if guarded = true; !g.InForce || !g.Noted || IsOn(k) {
				t.Errorf("%s: guard %+v is written when the setting is on: %t", tt.name, g, IsOn(k))
			}
			return tt.err
		})
		if got, _ := k.Read(Name); !errors.Is(err, tt.err) || got != tt.want || guarded != tt.opens {
			t.Errorf("%s: error %v, guarded %t, the setting is %s, want %s", tt.name, err, guarded, got, tt.want)
		}
	}
}

// TestAdministratorLater has the administrator switch the setting on while we do not want
// it: a service proxy must not switch it off.
func TestAdministratorLater(t *testing.T) {
	k := sysctltest.NewFake(map[string]string{Name: "0"})
	s := New(k, nil)
	for _, now := range []string{"0", "1", "1"} {
		if err := k.Write(Name, now); err != nil {
			t.Fatal(err)
		}
		s.Find(t.Context(), Traces{})
		if g := s.Guard(t.Context(), false); g.InForce {
			t.Errorf("guard %+v", g)
		}
		if got, _ := k.Read(Name); got != now {
			t.Errorf("the setting is %s, want %s", got, now)
		}
	}
}

// TestReset checks what Reset reports.
func TestReset(t *testing.T) {
	k := sysctltest.NewFake(map[string]string{Name: "1"})
	if done, err := Reset(k); done == "" || err != nil || IsOn(k) {
		t.Errorf("did %q, error %v", done, err)
	}
	if done, err := Reset(k); done != "" || err != nil {
		t.Errorf("the second time: did %q, error %v", done, err)
	}
	k = sysctltest.NewFake(map[string]string{Name: "1"})
	refused := errors.New("read-only file system")
	k.Refuse(Name, refused)
	if done, err := Reset(k); done != "" || !errors.Is(err, refused) {
		t.Errorf("did %q, error %v", done, err)
	}
}

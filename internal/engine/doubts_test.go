package engine

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// words returns doubts as short text, with the seconds since they began.
func words(all []Doubt) string {
	var out []string
	for _, d := range all {
		out = append(out, fmt.Sprintf("%s %s %.0fs: %s", d.Kind, d.Object, time.Since(d.Since).Seconds(), d.Reason))
	}
	return strings.Join(out, "; ")
}

// TestDoubtsKeepTheirBeginning sets doubts again, as a check that is repeated does.
func TestDoubtsKeepTheirBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d Doubts
		d.Clear(ServicePortsRefused, "b")
		d.Set(Doubt{Kind: ServicePortsRefused, Object: "b", Reason: "full"})
		time.Sleep(2 * time.Second)
		d.Set(Doubt{Kind: ServicePortsRefused, Object: "b", Reason: "still full"})
		d.Set(Doubt{Kind: ServicePortsRefused, Object: "a", Reason: "busy", Since: time.Now().Add(-time.Minute)})
		if got, want := words(d.All()), "ServicePortsRefused a 60s: busy; ServicePortsRefused b 2s: still full"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		d.Clear(ServicePortsRefused, "b")
		d.Set(Doubt{Kind: ServicePortsRefused, Object: "b", Reason: "full again"})
		if got, want := words(d.All()), "ServicePortsRefused a 60s: busy; ServicePortsRefused b 0s: full again"; got != want {
			t.Errorf("after it was cleared: %s, want %s", got, want)
		}
	})
}

// TestDoubtsAreBounded has a doubt about each of very many objects.
func TestDoubtsAreBounded(t *testing.T) {
	var d Doubts
	for i := range 10 * doubtsOfKind {
		d.Set(Doubt{Kind: ServicePortsRefused, Object: fmt.Sprintf("%03d", i)})
	}
	if all := d.All(); len(all) != doubtsOfKind || all[0].Object != "000" {
		t.Errorf("%d doubts, the first %+v; want the first %d", len(all), all[0], doubtsOfKind)
	}
}

// TestRefusedRowsAreADoubt checks that one doubt sums up all refused rows.
func TestRefusedRowsAreADoubt(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.plane.refuse[key("api")] = "the set is full"
		l.started()
		time.Sleep(10 * time.Second)
		all := l.Doubts()
		if got, want := words(all), "ServicePortsRefused  10s: the kernel refuses ns/api:p/TCP/IPv4: the set is full"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if len(all) == 1 && !all[0].NextAt.After(time.Now()) {
			t.Errorf("it is tried again at %v, want the future", all[0].NextAt)
		}
		l.plane.with(func(f *fakePlane) { f.refuse[key("web")] = "too large" })
		l.change(2)
		synctest.Wait()
		if got, want := words(l.Doubts()), "the kernel refuses 2 service ports, the first is ns/api:p/TCP/IPv4: the set is full"; !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
		l.plane.with(func(f *fakePlane) { clear(f.refuse) })
		time.Sleep(time.Minute)
		if got := words(l.Doubts()); got != "" {
			t.Errorf("after the kernel accepted all: %s", got)
		}
	})
}

// TestChangedRulesAreADoubt checks that changes by another process are a doubt until a
// full sync that began after them has succeeded: at once, or after a back-off.
func TestChangedRulesAreADoubt(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		for range 6 {
			l.plane.seen <- "theirs"
			synctest.Wait()
			time.Sleep(repairQuietFactor * repairMin)
		}
		synctest.Wait()
		if got := words(l.Doubts()); got != "" {
			t.Errorf("after repairs: %s", got)
		}
		l.plane.drift(key("api"))
		time.Sleep(time.Second)
		l.plane.seen <- "theirs, too"
		synctest.Wait()
		all := l.Doubts()
		if got, want := words(all), "RulesChanged  1s: another process changed our rules: row gone"; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		in := time.Until(all[0].NextAt)
		if in <= 0 || in > repairMax {
			t.Errorf("they are repaired in %v", in)
		}
		time.Sleep(in)
		synctest.Wait()
		l.wantRows()
		if got := words(l.Doubts()); got != "" {
			t.Errorf("after the last repair: %s", got)
		}
	})
}

// TestAChangeDuringARepairStaysADoubt checks that a full sync which began before a change
// does not end the doubt.
func TestAChangeDuringARepairStaysADoubt(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.plane.with(func(f *fakePlane) { f.faults = []fault{slowness} })
		l.plane.seen <- "theirs"
		time.Sleep(time.Second / 2)
		l.plane.seen <- "theirs again"
		time.Sleep(time.Second/2 + ms)
		synctest.Wait()
		if got, want := words(l.Doubts()), "RulesChanged  1s: another process changed our rules: theirs"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		time.Sleep(time.Minute)
		if got := words(l.Doubts()); got != "" {
			t.Errorf("after both repairs: %s", got)
		}
	})
}

// TestFailuresAreADoubt checks the doubts until the first sync has succeeded, and when
// later ones fail.
func TestFailuresAreADoubt(t *testing.T) {
	run(t, nil, func(l *lab) {
		time.Sleep(3 * time.Second)
		if got, want := words(l.Doubts()), "NotSynced  3s: Services are not known yet, and rules of an earlier run, if there are any, stay in force"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		l.plane.faults = []fault{nothing, nothing}
		l.start()
		synctest.Wait()
		if got, want := words(l.Doubts()), "SyncFailing  0s: sync 2 rows: busy"; !strings.Contains(got, "NotSynced") || !strings.Contains(got, want) {
			t.Errorf("%s, want NotSynced and %s", got, want)
		}
		time.Sleep(retryMin + ms)
		all := l.Doubts()
		if at := all[len(all)-1].NextAt; !at.After(time.Now()) {
			t.Errorf("it is retried at %v, want the future", at)
		}
		time.Sleep(time.Second)
		if got := words(l.Doubts()); got != "" {
			t.Errorf("after a sync: %s", got)
		}
	})
}

package engine

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// count returns how many syncs and applies there were since the last time.
func (l *lab) count() (syncs, applies int) {
	synctest.Wait()
	for _, c := range l.plane.takeCalls() {
		if strings.HasPrefix(c, "sync") {
			syncs++
		} else {
			applies++
		}
	}
	return syncs, applies
}

// change replaces web's endpoint, n being the turn.
func (l *lab) change(n int) { l.OnEndpointSliceAdd(endpoints("web", 1+n%200)) }

// TestObjectsChangeWhileARepairWaits runs half a minute in which another process changes
// our rules all the time and 50 objects per second change.
func TestObjectsChangeWhileARepairWaits(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		for n := range 1500 {
			for range 2 {
				l.plane.seen <- "theirs"
				time.Sleep(10 * ms)
			}
			l.change(n)
		}
		syncs, applies := l.count()
		t.Logf("%d syncs and %d applies in half a minute", syncs, applies)
		if syncs < 3 || syncs > 12 {
			t.Errorf("%d full syncs, want those of the repairs alone", syncs)
		}
		if applies < 1450 {
			t.Errorf("%d applies of 1500 changes", applies)
		}
		l.wantRows()
		time.Sleep(time.Minute)
		if syncs, _ := l.count(); syncs != 1 {
			t.Errorf("%d full syncs after they stopped, want the repair that waited", syncs)
		}
	})
}

// TestARepairThatWaitsGivesWay removes rules that Apply needs: the full sync does not wait
// for the end of the repair's back-off.
func TestARepairThatWaitsGivesWay(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		for range 6 {
			l.plane.seen <- "theirs"
			synctest.Wait()
			time.Sleep(repairQuietFactor * repairMin) // The back-off starts again only after a longer time.
		}
		l.plane.drift(key("api")) // Its repair comes after seconds.
		l.count()
		l.change(1)
		l.wantCalls("apply +1 -0")
		time.Sleep(retryMin)
		l.wantCalls("sync 2")
		l.wantRows()
		time.Sleep(repairMax)
		l.wantCalls() // It is repaired, and not once more.
	})
}

// TestARepairComesInTime checks that changes of objects do not delay a repair.
func TestARepairComesInTime(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		for range 2 {
			l.plane.seen <- "theirs"
			synctest.Wait()
		}
		l.wantCalls("sync 2") // The second one waits for repairMin.
		for n := range 10 {
			l.change(n + 1)
			time.Sleep(repairMin / 10)
		}
		if syncs, applies := l.count(); syncs != 1 || applies != 10 {
			t.Errorf("%d syncs and %d applies until the repair was due, want 1 and 10", syncs, applies)
		}
	})
}

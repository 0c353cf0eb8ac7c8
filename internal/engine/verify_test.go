package engine

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/proxy"
)

// verified plays a test on a kernel that announces nothing.
func verified(t *testing.T, play func(*lab, *verifiedPlane)) {
	t.Helper()
	v := &verifiedPlane{damaged: map[proxy.PortKey]string{}}
	run(t, func(s *Settings) {
		v.fakePlane = s.Dataplane.(*fakePlane)
		s.Dataplane = v
	}, func(l *lab) { play(l, v) })
}

// TestWhatIsNotAnnouncedIsReadBack checks that a row, and what all rows share, is repaired
// soon after another process changed it, and that the log names it.
func TestWhatIsNotAnnouncedIsReadBack(t *testing.T) {
	for _, tt := range []struct {
		key  proxy.PortKey
		says string
	}{
		{key("web"), `seen="ns/web:p/TCP/IPv4: server`},
		{proxy.PortKey{}, `seen="server is weight 7, not weight 1"`},
	} {
		verified(t, func(l *lab, v *verifiedPlane) {
			l.started()
			time.Sleep(time.Minute)
			l.wantCalls() // Nothing differs.
			v.with(func(*fakePlane) { v.damaged[tt.key] = "weight 7" })
			time.Sleep(verifyInterval)
			l.wantCalls("sync 2")
			if !strings.Contains(l.log(), tt.says) || !strings.Contains(l.log(), "server is weight 7, not weight 1") {
				t.Errorf("the log does not say %q:\n%s", tt.says, l.log())
			}
			time.Sleep(time.Minute)
			l.wantCalls()
		})
	}
}

// TestNothingIsReadBackWhileARepairWaits checks that damage which was found once does not
// count as another change.
func TestNothingIsReadBackWhileARepairWaits(t *testing.T) {
	verified(t, func(l *lab, v *verifiedPlane) {
		l.started()
		for range 5 {
			l.plane.seen <- "theirs"
			synctest.Wait()
			time.Sleep(repairQuietFactor * repairMin)
		}
		l.plane.seen <- "theirs" // Its repair comes after 1.6 s.
		synctest.Wait()
		l.count()
		v.with(func(*fakePlane) { v.damaged[key("web")], v.reads = "weight 7", 0 })
		time.Sleep(time.Second)
		v.with(func(*fakePlane) {
			if v.reads > 0 {
				t.Errorf("%d rows were read back while a repair waited", v.reads)
			}
		})
		l.wantCalls()
		time.Sleep(time.Second)
		l.wantCalls("sync 2")
	})
}

// TestDamageNowAndThen checks that occasional damage is repaired immediately each time.
func TestDamageNowAndThen(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		for range 20 {
			l.plane.seen <- "theirs"
			l.wantCalls("sync 2")
			time.Sleep(repairQuietFactor*repairMin + ms)
		}
	})
}

// TestRepairedRowsAreNamed checks that the log names the rows whose objects a full sync had
// to write again, without those that had changed.
func TestRepairedRowsAreNamed(t *testing.T) {
	verified(t, func(l *lab, v *verifiedPlane) {
		l.started()
		if strings.Contains(l.log(), "Repaired") {
			t.Errorf("the first sync repairs:\n%s", l.log())
		}
		v.with(func(*fakePlane) {
			v.rewritten = proxy.Rewritten{Objects: 3, Rows: []proxy.PortKey{key("api"), key("web")}}
		})
		l.requestFullSync(time.Now())
		l.change(1) // which is web's
		synctest.Wait()
		if want := `Repaired kernel objects that were not as we wrote them objects=3 servicePorts=["ns/api:p/TCP/IPv4"] more=0`; !strings.Contains(l.log(), want) {
			t.Errorf("the log does not say %s:\n%s", want, l.log())
		}
	})
}

// TestWhatCannotBeReadBackIsADoubt checks that it is one until it can be read again.
func TestWhatCannotBeReadBackIsADoubt(t *testing.T) {
	verified(t, func(l *lab, v *verifiedPlane) {
		l.started()
		v.with(func(*fakePlane) { v.err = errors.New("no memory") })
		time.Sleep(time.Minute)
		got, want := words(l.Doubts()), "s: the kernel cannot be read: no memory"
		if !strings.HasPrefix(got, "RulesUnwatched "+readBack+" ") || !strings.HasSuffix(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
		v.with(func(*fakePlane) { v.err = nil })
		time.Sleep(time.Second)
		if got := words(l.Doubts()); got != "" {
			t.Errorf("once it can be read: %s", got)
		}
	})
}

package engine

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/proxy"
)

// texts returns changes as lines, without their times.
func texts(all []Change) (out []string) {
	for _, c := range all {
		out = append(out, fmt.Sprintf("%d %s %s %s", c.Number, c.What, c.Key.Name, c.Detail))
	}
	return out
}

func TestChangesAreRememberedNewestFirst(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.OnEndpointSliceAdd(endpoints("web", 7))
		synctest.Wait()
		l.OnEndpointSliceAdd(endpoints("web", 7, 8))
		synctest.Wait()
		l.OnServiceDelete(service("api", 1))
		synctest.Wait()
		got, total := l.Changes(0, 3)
		want := []string{"5 Removed api ", "4 Changed web endpoints 1 to 2", "3 Changed web 1 of 1 endpoints replaced"}
		if fmt.Sprint(texts(got)) != fmt.Sprint(want) || total != 5 {
			t.Errorf("changes %q of %d, want %q of 5", texts(got), total, want)
		}
		if got, _ := l.Changes(3, 10); len(got) != 2 || got[0].Number != 2 || got[0].What != "Added" {
			t.Errorf("before the third: %q", texts(got))
		}
		if got, _ := l.Changes(1, 10); len(got) != 0 {
			t.Errorf("before the first: %q", texts(got))
		}
	})
}

func TestChangesAreDescribed(t *testing.T) {
	list := func(n int, port uint16) (out []proxy.Endpoint) {
		for i := range n {
			out = append(out, proxy.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), port)})
		}
		return out
	}
	for _, tt := range []struct {
		name     string
		from, to proxy.ServicePort
		want     string
	}{
		{"nothing", proxy.ServicePort{Cluster: list(2, 80)}, proxy.ServicePort{Cluster: list(2, 80)}, ""},
		{"one endpoint less", proxy.ServicePort{Cluster: list(2, 80), UsableSomewhere: true}, proxy.ServicePort{Cluster: list(1, 80), UsableSomewhere: true}, "endpoints 2 to 1"},
		{"the last endpoint", proxy.ServicePort{Local: list(1, 80), UsableSomewhere: true}, proxy.ServicePort{}, "local endpoints 1 to 0"},
		{"a long list", proxy.ServicePort{Cluster: list(300, 80)}, proxy.ServicePort{Cluster: list(300, 81)}, "endpoints replaced"},
		{"only another node's endpoints", proxy.ServicePort{}, proxy.ServicePort{UsableSomewhere: true}, "endpoints on other nodes"},
		{"closed to everyone", proxy.ServicePort{}, proxy.ServicePort{AllowFrom: []netip.Prefix{}}, "policy"},
		{"draining", proxy.ServicePort{}, proxy.ServicePort{Draining: []netip.AddrPort{{}}}, "draining endpoints 0 to 1"},
	} {
		if got := difference(&tt.from, &tt.to); got != tt.want {
			t.Errorf("%s: described as %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestRowsThatAFullSyncTookOutAreChanges checks that a row which a full sync refuses, and
// so takes out of the kernel, is among the changes.
func TestRowsThatAFullSyncTookOutAreChanges(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.refuse("web", "set is full")
		l.plane.seen <- "flush"
		l.wantCalls("sync 2")
		got, total := l.Changes(0, 1)
		if want := "[3 Removed web ]"; fmt.Sprint(texts(got)) != want || total != 3 {
			t.Errorf("changes %q of %d, want %q of 3", texts(got), total, want)
		}
	})
}

// TestChangeTakesUntilItIsInForce checks that the duration of a change that failed at
// first includes the retries.
func TestChangeTakesUntilItIsInForce(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.plane.with(func(f *fakePlane) { f.faults = []fault{nothing, slowness} })
		l.OnEndpointSliceAdd(endpoints("web", 7))
		time.Sleep(time.Minute)
		synctest.Wait()
		got, _ := l.Changes(0, 1)
		if want := 100*ms + time.Second; len(got) != 1 || got[0].Took != want {
			t.Errorf("took %v, want the wait and the write, %v", got, want)
		}
	})
}

func TestOfManyChangesTheLastAreKept(t *testing.T) {
	var c changes
	d, dirty := &proxy.Delta{}, map[proxy.PortKey]*RowStatus{}
	for i := range 3 * ChangesKept {
		k := key(fmt.Sprintf("s%06d", i))
		dirty[k] = &RowStatus{}
		if i < ChangesKept {
			d.Removes = append(d.Removes, &proxy.ServicePort{Key: k})
		} else {
			d.Upserts = append(d.Upserts, proxy.Upsert{New: &proxy.ServicePort{Key: k}})
		}
	}
	c.record(d, time.Time{}, dirty)
	got := c.last(0, 10*ChangesKept)
	if len(got) != ChangesKept || got[0].Key.Name != "s003071" || got[ChangesKept-1].Number != 2*ChangesKept+1 {
		t.Errorf("%d changes from %v to %v", len(got), got[0], got[len(got)-1])
	}
}

func TestViewTellsHowRowsStand(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.Look(func(v View) {
			if s := v.Sync; s.First || s.Waiting == "" {
				t.Errorf("before the start: %+v", s)
			}
		})
		l.started()
		l.refuse("web", "set is full")
		l.OnEndpointSliceAdd(endpoints("web", 1, 2))
		synctest.Wait()
		l.Look(func(v View) {
			pending, refused := v.DirtyCounts()
			if pending != 0 || refused != 1 || v.Row(key("web")).Refused == "" || v.Row(key("api")).InForce != v.State.Rows[key("api")] {
				t.Errorf("%d pending, %d refused; web %+v; api %+v", pending, refused, v.Row(key("web")), v.Row(key("api")))
			}
			if s := v.Sync; !s.First || s.Err != nil || s.Waiting != "" {
				t.Errorf("after the first sync: %+v", s)
			}
		})
		l.accept("web")
		l.plane.with(func(f *fakePlane) { f.faults = []fault{nothing} })
		l.OnServiceDelete(service("api", 1))
		synctest.Wait()
		l.Look(func(v View) {
			if pending, _ := v.DirtyCounts(); pending != 1 || v.Sync.Err == nil {
				t.Errorf("after a sync that failed: %d pending, %+v", pending, v.Sync)
			}
		})
	})
}

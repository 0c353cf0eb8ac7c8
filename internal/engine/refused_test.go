package engine

import (
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
)

func serviceCIDR(cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
	}
}

func (l *lab) refuse(name, why string) {
	l.plane.with(func(f *fakePlane) { f.refuse[key(name)] = why })
}

// wantEndpoint checks the only endpoint that a row has in the kernel.
func (l *lab) wantEndpoint(name, addr string) {
	l.t.Helper()
	l.plane.with(func(f *fakePlane) {
		if row := f.kernel.Rows[key(name)]; row == nil || len(row.Cluster) != 1 || row.Cluster[0].Addr.String() != addr {
			l.t.Errorf("the kernel has %v, want endpoint %s", row, addr)
		}
	})
}

func (l *lab) accept(name string) {
	l.plane.with(func(f *fakePlane) { delete(f.refuse, key(name)) })
}

func TestRefusedRowDoesNotStopTheOthers(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.refuse("web", "set is full")
		l.OnEndpointSliceAdd(endpoints("web", 1, 2))
		l.OnEndpointSliceAdd(endpoints("api", 1, 2))
		synctest.Wait()
		l.plane.takeCalls()
		if got := len(l.plane.kernel.Rows[key("api")].Cluster); got != 2 {
			t.Errorf("api has %d endpoints, want 2", got)
		}
		if got := len(l.plane.kernel.Rows[key("web")].Cluster); got != 1 {
			t.Errorf("web has %d endpoints, want its old one", got)
		}
		l.wantRefused("web")

		l.OnEndpointSliceAdd(endpoints("api", 3)) // The refused row is not dragged along.
		l.wantCalls("apply +1 -0")
		time.Sleep(100 * ms)
		l.wantCalls("apply +1 -0") // The quick first retry of web.
		time.Sleep(time.Hour / 2)
		if n := len(l.plane.takeCalls()); n < 50 || n > 80 {
			t.Errorf("%d retries in half an hour, want one each 30 s", n)
		}
		l.wantLog("Kernel refuses service port", 1)
		l.wantLog("ns/web:p/TCP/IPv4", 1)
		l.wantLog("set is full", 1)
		l.wantLog("Synced full=", 3) // The first, and one for each change of api.

		l.accept("web")
		time.Sleep(retryMax)
		l.wantCalls("apply +1 -0")
		l.wantRows()
		l.wantLog("accepted again", 1)
		l.wantRefused()
	})
}

func TestRefusedRowThatChangesIsTriedAtOnce(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.refuse("web", "set is full")
		l.OnEndpointSliceAdd(endpoints("web", 1, 2))
		time.Sleep(time.Minute)
		synctest.Wait()
		l.plane.takeCalls()
		l.refuse("web", "still full")
		l.OnEndpointSliceAdd(endpoints("web", 3))
		l.wantCalls("apply +1 -0")
		l.wantLog("still full", 1)
		time.Sleep(100 * ms) // Its waits begin anew.
		l.wantCalls("apply +1 -0")
		l.accept("web")
		l.OnEndpointSliceAdd(endpoints("web", 4))
		l.wantCalls("apply +1 -0")
		l.wantRows()
	})
}

func TestRefusedBySyncIsAbsent(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.refuse("web", "no such family")
		l.start()
		l.wantCalls("sync 2")
		l.wantRows(key("web"))
		l.wantLog("First sync done", 1)
		l.wantRefused("web")
		l.accept("web")
		time.Sleep(100 * ms)
		l.wantCalls("apply +1 -0") // The fake checks that no old row comes with it.
		l.wantRows()
	})
}

func TestRefusedByALaterSyncIsAbsentToo(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.refuse("web", "set is full")
		l.plane.seen <- "flush"
		l.wantCalls("sync 2")
		l.wantRows(key("web")) // Observers know that it is gone.
		l.OnServiceDelete(service("web", 2))
		l.wantCalls("apply +0 -1") // Half of it may be there.
		l.wantRefused()
		time.Sleep(time.Minute)
		l.wantCalls()
		l.wantRows()
		l.wantLog("accepted again", 0)
	})
}

// TestSyncKeepsTheEarlierVersion checks that a full sync does not take a row out of the
// kernel because of its new version, be that refused before or with the sync.
func TestSyncKeepsTheEarlierVersion(t *testing.T) {
	for _, before := range []bool{true, false} {
		run(t, func(s *Settings) { s.MinSyncPeriod = 10 * ms }, func(l *lab) {
			l.started()
			time.Sleep(10 * ms)
			l.plane.takeCalls()
			l.plane.refusesNew = true
			l.refuse("web", "no such scheduler")
			if before {
				l.OnEndpointSliceAdd(endpoints("web", 3))
				l.wantCalls("apply +1 -0")
			} else {
				l.OnEndpointSliceAdd(endpoints("api", 2)) // starts MinSyncPeriod
				l.wantCalls("apply +1 -0")
				l.OnEndpointSliceAdd(endpoints("web", 3))
			}
			l.plane.seen <- "flush"
			time.Sleep(10 * ms)
			l.wantCalls("sync 2", "apply +1 -0")
			l.wantEndpoint("web", "10.244.0.1:8080")
			if st := l.row("web"); st.InForce == nil || st.InForce.Cluster[0].Addr.String() != "10.244.0.1:8080" || st.Refused == "" {
				t.Errorf("refused before: %t, web is %+v; want it refused, and in force as it was", before, st)
			}
			l.accept("web")
			time.Sleep(retryMax)
			l.wantRows()
			l.wantRefused()
		})
	}
}

// TestSyncGivesAwayTheFrontend lets a row get the address that the earlier version of a
// refused row has: the refused row is taken out.
func TestSyncGivesAwayTheFrontend(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.refuse("web", "busy")
		l.OnServiceUpdate(service("web", 2), service("web", 9))
		l.wantCalls("apply +1 -0")
		l.plane.with(func(f *fakePlane) { f.faults = []fault{halfWay} }) // as modes do that find the address in use
		l.OnServiceAdd(service("new", 2))
		l.wantCalls("apply +1 -0")
		time.Sleep(100 * ms)
		l.wantCalls("sync 3")
		l.wantRows(key("web"))
	})
}

// TestPartsOfARefusedRow checks that a row of which the kernel has parts is synced in its
// wanted version.
func TestPartsOfARefusedRow(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.plane.partial = true
		l.refuse("web", "one endpoint is missing")
		l.OnEndpointSliceAdd(endpoints("web", 3, 4))
		l.wantCalls("apply +1 -0")
		l.plane.seen <- "flush"
		l.wantCalls("sync 2")
		l.wantLog("one endpoint is missing", 1)
	})
}

// TestLeftoversAreRetried refuses the removal of objects that belong to no row.
func TestLeftoversAreRetried(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.plane.leftovers = "load balancer is busy"
		l.start()
		l.wantCalls("sync 2")
		l.wantRows()
		l.wantRefused()
		l.wantLog("Kernel refuses to remove what no service port needs", 1)
		l.wantLog("load balancer is busy", 1)
		time.Sleep(100 * ms)
		l.wantCalls("apply +0 -0 leftovers")
		l.OnEndpointSliceAdd(endpoints("web", 2))
		l.wantCalls("apply +1 -0") // Leftovers are not due.
		time.Sleep(200 * ms)
		l.wantCalls("apply +0 -0 leftovers")
		time.Sleep(time.Hour / 2)
		if n := len(l.plane.takeCalls()); n < 50 || n > 80 {
			t.Errorf("%d retries in half an hour, want one each 30 s", n)
		}
		l.plane.with(func(f *fakePlane) { f.leftovers = "" })
		time.Sleep(retryMax)
		l.wantCalls("apply +0 -0 leftovers")
		l.wantLog("What no service port needs is removed", 1)
		time.Sleep(time.Hour / 2)
		l.wantCalls()
	})
}

func TestRefusedRemovalStaysInTheKernel(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.refuse("web", "busy")
		l.OnServiceDelete(service("web", 2))
		l.wantCalls("apply +0 -1")
		if l.plane.kernel.Rows[key("web")] == nil {
			t.Fatal("the fake removed a row that it refused")
		}
		l.accept("web")
		// It comes back with another address: the old row travels with it.
		l.OnServiceAdd(service("web", 9))
		l.wantCalls("apply +1 -0")
		l.wantRows()
	})
}

func TestNewRowRefusedAndDeletedIsForgotten(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.refuse("new", "set is full")
		l.OnServiceAdd(service("new", 3))
		l.wantCalls("apply +1 -0")
		l.OnServiceDelete(service("new", 3))
		l.wantCalls("apply +0 -1") // Half of it may be there.
		time.Sleep(time.Hour / 2)
		l.wantCalls()
		l.wantRows()
	})
}

func TestRefusedRowInAFailedStep(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.plane.refusesNew = true
		l.started()
		l.refuse("web", "set is full")
		l.OnEndpointSliceAdd(endpoints("web", 1, 2))
		l.wantCalls("apply +1 -0")
		l.plane.with(func(f *fakePlane) { f.faults = []fault{nothing, halfWay} })
		time.Sleep(50 * ms)
		l.OnEndpointSliceAdd(endpoints("web", 5))
		l.wantCalls("apply +1 -0") // Nothing applied: the row waits with the step.
		time.Sleep(100*ms - 1)
		l.wantCalls()
		time.Sleep(time.Nanosecond)
		l.wantCalls("apply +1 -0") // Half way.
		time.Sleep(200 * ms)
		l.wantCalls("sync 2", "apply +1 -0") // Refused again, so it keeps its first version.
		l.wantEndpoint("web", "10.244.0.1:8080")
		l.accept("web")
		time.Sleep(retryMax)
		l.wantCalls("apply +1 -0")
		l.wantRows()
		l.wantLog("Kernel refuses service port", 1)
	})
}

// TestRowsThatWereNotAskedFor checks that a refused row which was not among the changed
// ones (a change of the Node may affect any row) is retried if it is wanted, and ignored
// if it is not.
func TestRowsThatWereNotAskedFor(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		web, api := l.resolver.State().Rows[key("web")], l.resolver.State().Rows[key("api")]
		tab := newTable(l.resolver.State())
		tab.markChanged(&proxy.Delta{Upserts: []proxy.Upsert{{Old: web, New: web}}, Node: &proxy.Node{}}, time.Now())
		w := &work{}
		w.changed, w.step = tab.due(false, time.Now())
		done, refusals := tab.recordSync(w, proxy.Refused{key("api"): errHalfWay, key("gone"): errHalfWay}, time.Now())
		if len(done.Removes)+len(done.Upserts) != 0 || done.Node == nil || len(refusals) != 1 || refusals[0].Key != key("api") {
			t.Errorf("done %+v, refusals %v; want the Node done and api refused", done, refusals)
		}
		l.mu.Lock()
		l.table = tab
		l.mu.Unlock()
		if all := l.Refused(); len(all) != 1 || all[0].InForce != api || all[0].Refused != errHalfWay.Error() {
			t.Errorf("refused are %+v; want api alone, in force as it was", all)
		}
	})
}

// TestHalfDone lets the kernel accept the first rows and then fail: all rows stay dirty,
// and are retried without a full sync.
func TestHalfDone(t *testing.T) {
	run(t, func(s *Settings) { s.MinSyncPeriod = 10 * ms }, func(l *lab) {
		l.started()
		l.plane.faults = []fault{someRows}
		l.OnEndpointSliceAdd(endpoints("api", 3))
		l.OnEndpointSliceAdd(endpoints("web", 3))
		time.Sleep(10 * ms) // Both are one run.
		l.wantCalls("apply +2 -0")
		pending := l.row("web")
		if pending.Pending.IsZero() || pending.Refused != "" || len(pending.InForce.Cluster) != 1 {
			t.Errorf("web is %+v; want it pending, and not refused", pending)
		}
		time.Sleep(100 * ms)
		l.wantCalls("apply +2 -0")
		l.wantRows()
		if st := l.row("web"); !st.Pending.IsZero() || !st.Since.After(pending.Since) || !st.Since.After(pending.Pending) {
			t.Errorf("web is %+v; want it in force since now", st)
		}
	})
}

// TestBaseWithoutOverlay lets a mode write the base rules of all rows, but not the
// overlay of some: those rows are refused, and only they are retried.
func TestBaseWithoutOverlay(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.plane.base = true
		l.refuse("web", "overlay: no space")
		l.start()
		l.wantCalls("sync 2")
		l.OnEndpointSliceAdd(endpoints("web", 2))
		l.wantCalls("apply +1 -0")
		if got := l.plane.kernel.Rows[key("web")].Cluster[0].Addr.String(); got != "10.244.0.2:8080" {
			t.Errorf("the base has endpoint %s, want the new one", got)
		}
		if st := l.row("web"); st.Refused != "overlay: no space" {
			t.Errorf("web is %+v; want it refused", st)
		}
		l.accept("web")
		time.Sleep(100 * ms)
		l.wantCalls("apply +1 -0")
		l.wantRows()
		time.Sleep(time.Minute)
		l.wantCalls()
	})
}

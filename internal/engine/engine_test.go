package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const ms = time.Millisecond

func TestNothingIsProgrammedBeforeBothAreSynced(t *testing.T) {
	for _, order := range []struct {
		name        string
		first, last func(*lab)
	}{
		{"services first", func(l *lab) { l.OnServiceSynced() }, func(l *lab) { l.OnEndpointSlicesSynced() }},
		{"slices first", func(l *lab) { l.OnEndpointSlicesSynced() }, func(l *lab) { l.OnServiceSynced() }},
	} {
		t.Run(order.name, func(t *testing.T) {
			run(t, nil, func(l *lab) {
				l.OnNodeSynced()
				l.OnServiceAdd(service("web", 1))
				l.OnEndpointSliceAdd(endpoints("web", 1, 2))
				order.first(l)
				l.Sync()
				time.Sleep(24 * time.Hour)
				l.wantCalls()
				if r, at := l.mirror.outcome(); !at.IsZero() {
					t.Errorf("told of %+v before anything was done", r)
				}
				order.last(l)
				l.wantCalls("sync 1")
				l.wantRows()
				l.wantLog("First sync done", 1)
				if r, at := l.mirror.outcome(); !at.Equal(time.Now()) || r.Err != nil {
					t.Errorf("told of %+v after the first sync", r)
				}
			})
		})
	}
}

func TestFirstSyncWaitsForTheNodeButNotForEver(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.OnServiceSynced()
		l.OnEndpointSlicesSynced()
		time.Sleep(5 * time.Second)
		l.wantCalls()
		l.OnNodeAdd(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}})
		l.OnNodeSynced()
		l.wantCalls("sync 0")
		l.wantLog("Node not received", 0)
	})
	run(t, nil, func(l *lab) {
		time.Sleep(time.Hour) // Services take long: that is not the Node's fault.
		l.OnServiceSynced()
		l.OnEndpointSlicesSynced()
		time.Sleep(10 * time.Second)
		l.OnServiceAdd(service("web", 1))
		time.Sleep(nodeWait - 10*time.Second - ms)
		l.wantCalls()
		time.Sleep(ms)
		l.wantCalls("sync 1")
		l.wantLog("Node not received", 1)
	})
}

func TestFirstSyncIsRetried(t *testing.T) {
	for _, f := range []fault{nothing, halfWay} {
		run(t, nil, func(l *lab) {
			l.plane.faults = []fault{f, f}
			l.start()
			l.wantCalls("sync 2")
			if r, _ := l.mirror.outcome(); r.Err == nil {
				t.Error("told of no error after a failure")
			}
			time.Sleep(100 * ms)
			l.wantCalls("sync 2")
			time.Sleep(200 * ms)
			l.wantCalls("sync 2")
			l.wantRows()
			l.wantLog("Sync failed and is retried", 2)
			time.Sleep(50 * time.Minute)
			l.wantCalls()
			if l.mirror.told != 1 {
				t.Errorf("observers were told %d times, want once", l.mirror.told)
			}
		})
	}
}

func TestOneChangeIsOneApply(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.OnEndpointSliceUpdate(endpoints("web", 1), endpoints("web", 1, 2))
		l.wantCalls("apply +1 -0")
		l.OnEndpointSliceUpdate(endpoints("web", 1, 2), endpoints("web", 1, 2))
		l.Sync()
		l.wantCalls()
		l.OnServiceDelete(service("api", 1))
		l.wantCalls("apply +0 -1")
		l.OnEndpointSliceDelete(endpoints("api", 1))
		l.wantCalls()
		l.wantRows()
		l.wantLog("Synced full=", 3)
	})
}

func TestManyEventsAreOneApply(t *testing.T) {
	run(t, func(s *Settings) { s.MinSyncPeriod = time.Second }, func(l *lab) {
		l.start()
		synctest.Wait()
		for n := range 50 {
			l.OnEndpointSliceAdd(endpoints("web", n+1))
			l.OnEndpointSliceAdd(endpoints("api", n+1))
			time.Sleep(ms)
		}
		l.wantCalls("sync 2")
		time.Sleep(time.Second)
		l.wantCalls("apply +2 -0")
		l.wantRows()
	})
}

func TestNothingAppliedKeepsTheStep(t *testing.T) {
	run(t, func(s *Settings) { s.MinSyncPeriod = 10 * ms }, func(l *lab) {
		l.started()
		time.Sleep(time.Second)
		l.plane.faults = []fault{nothing, nothing}
		l.OnEndpointSliceAdd(endpoints("web", 1, 2))
		l.wantCalls("apply +1 -0")
		l.OnEndpointSliceAdd(endpoints("web", 3)) // Tried soon, from what the kernel holds.
		l.OnServiceDelete(service("api", 1))
		time.Sleep(10 * ms)
		l.wantCalls("apply +1 -1")
		time.Sleep(90 * ms)
		l.wantCalls("apply +1 -1")
		l.wantRows()
		l.wantRefused()
	})
}

func TestAnyOtherErrorAsksForSync(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.plane.faults = []fault{halfWay, nothing}
		l.OnEndpointSliceAdd(endpoints("web", 1, 2))
		l.wantCalls("apply +1 -0")
		time.Sleep(100 * ms)
		l.wantCalls("sync 2")
		time.Sleep(200 * ms)
		l.wantCalls("sync 2") // Also after a Sync that changed nothing.
		l.wantRows()
	})
}

func TestPeriodicFullSync(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		time.Sleep(time.Hour - time.Second)
		l.wantCalls()
		time.Sleep(time.Second)
		l.wantCalls("sync 2")
		time.Sleep(50 * time.Minute)
		l.OnServiceDelete(service("api", 1))
		l.wantCalls("apply +0 -1")
		time.Sleep(10 * time.Minute)
		l.OnServiceAdd(service("api", 1)) // A busy node has its full syncs too.
		l.wantCalls("sync 2")
		l.wantRows()
	})
}

func TestForeignChangeIsRepairedAtOnce(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.plane.drift(key("web"))
		l.wantCalls("sync 2")
		l.wantRows()
		l.wantLog("Another process changed our rules", 1)
		l.wantLog("row gone", 1)
		time.Sleep(10 * time.Minute)
		l.wantCalls()
	})
}

func TestForeignChangesDuringASyncNeedOneMore(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.plane.faults = []fault{slowness}
		l.plane.seen <- "first"
		synctest.Wait() // The repair is under way.
		for range 100 {
			l.plane.seen <- "again"
		}
		time.Sleep(10 * time.Second)
		l.wantCalls("sync 2", "sync 2")
		l.wantLog("Another process changed our rules", 1)
		l.wantLog("Another process keeps changing our rules", 1)
	})
}

// TestTwoWritersDoNotFight checks that repairs back off while another process keeps
// changing rules, and are immediate again after a quiet time.
func TestTwoWritersDoNotFight(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		for range 3000 {
			l.plane.seen <- "theirs"
			time.Sleep(10 * ms)
		}
		synctest.Wait()
		if n := len(l.plane.takeCalls()); n < 3 || n > 12 {
			t.Errorf("%d repairs in half a minute", n)
		}
		time.Sleep(3 * time.Minute)
		l.plane.takeCalls()
		l.plane.seen <- "theirs"
		l.wantCalls("sync 2")
	})
}

// TestChangeBeforeTheWatchIsRepaired removes a row after the first sync and before the
// watch begins.
func TestChangeBeforeTheWatchIsRepaired(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.plane.unwatched = func() {
			l.plane.with(func(f *fakePlane) {
				delete(f.kernel.Rows, key("web"))
				f.broken = true
			})
		}
		l.start()
		l.wantCalls("sync 2", "sync 2")
		l.wantRows()
		l.wantLog("Another process", 0) // Nobody knows.
		time.Sleep(time.Minute)
		l.wantCalls()
	})
}

func TestBrokenWatchIsTakenUpAgain(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.plane.unwatched = func() {}
		l.plane.watchErrs <- errors.New("no buffer space")
		synctest.Wait()
		l.wantLog("Watch of our rules ended", 1)
		l.wantCalls()
		if got, want := words(l.Doubts()), "RulesUnwatched  0s: the watch of our rules ended: no buffer space"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		time.Sleep(watchPause + watchBegun + ms)
		if got := words(l.Doubts()); got != "" {
			t.Errorf("while it watches again: %s", got)
		}
		l.wantCalls("sync 2") // Nobody looked for a while.
		l.plane.drift(key("api"))
		l.wantCalls("sync 2")
		l.plane.watchErrs <- errors.New("no buffer space")
		synctest.Wait() // The engine must end in the pause too.
	})
}

func TestNodeAndServiceCIDRReachTheKernel(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		l.OnNodeAdd(&v1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:   "here",
			Labels: map[string]string{v1.LabelTopologyZone: "z1"},
		}})
		synctest.Wait()
		if zone := l.plane.kernel.Node.Zone; zone != "z1" {
			t.Errorf("zone %q, want z1", zone)
		}
		l.OnNodeDelete(nil)
		cidr := serviceCIDR("10.96.0.0/16")
		l.OnServiceCIDRAdd(cidr)
		synctest.Wait()
		if n := len(l.plane.kernel.CIDRs); n != 1 {
			t.Errorf("%d ServiceCIDRs, want 1", n)
		}
		l.OnServiceCIDRDelete(cidr)
		synctest.Wait()
		if n := len(l.plane.kernel.CIDRs); n != 0 {
			t.Errorf("%d ServiceCIDRs, want none", n)
		}
		if zone := l.plane.kernel.Node.Zone; zone != "z1" {
			t.Errorf("zone %q after the Node went, want z1", zone)
		}
	})
}

func TestProblemsAreLoggedOnceAndWhenResolved(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.started()
		bad := service("web", 2)
		bad.Spec.ExternalIPs = []string{"192.0.2.300"}
		l.OnServiceUpdate(service("web", 2), bad)
		synctest.Wait()
		if r, _ := l.mirror.outcome(); len(r.Found) != 1 || r.Found[0].Field != "spec.externalIPs[0]" {
			t.Errorf("told of problems %v", r.Found)
		}
		for n := range 5 {
			l.OnEndpointSliceAdd(endpoints("web", n+1))
			synctest.Wait()
		}
		l.wantLog("Object has a problem", 1)
		l.wantLog("Object problem is resolved", 0)
		l.OnServiceUpdate(bad, service("web", 2))
		synctest.Wait()
		l.wantLog("Object has a problem", 1)
		l.wantLog("Object problem is resolved", 1)
	})
}

// TestManyProblemsAreNotAllShown checks that the log is limited when the problems of
// very many slices appear and disappear.
func TestManyProblemsAreNotAllShown(t *testing.T) {
	many := 10_000
	if testing.Short() {
		many = 1000
	}
	run(t, func(s *Settings) { s.MinSyncPeriod = time.Second }, func(l *lab) {
		l.started()
		good, bad := endpoints("web", 1), endpoints("web", 1)
		bad.Endpoints[0].Addresses = []string{"10.244.0.300"}
		flap := func(s *discoveryv1.EndpointSlice) {
			time.Sleep(time.Second)
			l.Sync()
			synctest.Wait() // What follows within a second is one run.
			for n := range many {
				s.Name = fmt.Sprintf("web-%d", n)
				l.OnEndpointSliceAdd(s)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		flap(bad)
		l.wantLog("Object has a problem", objectLines)
		l.wantLog(fmt.Sprintf("Too many lines about objects, verbosity 4 shows the hidden ones hidden=%d", many-objectLines), 1)
		began := time.Now()
		for range 20 {
			flap(good)
			flap(bad)
		}
		lines := strings.Count(l.log(), "Object has a problem") + strings.Count(l.log(), "Object problem is resolved")
		if most := objectLines + int(time.Since(began)/time.Second) + 2; lines > most {
			t.Errorf("%d lines in %v; want %d at most", lines, time.Since(began), most)
		}
		if n := strings.Count(l.log(), "Too many lines"); n < 5 || n > 15 {
			t.Errorf("it says %d times that lines are hidden", n)
		}
	})
}

func TestStopWaitsForTheRunningSync(t *testing.T) {
	run(t, nil, func(l *lab) {
		l.plane.faults = []fault{slowness}
		l.start()
		synctest.Wait()
		begin := time.Now()
		l.stop()
		err := <-l.ended
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("SyncLoop ended after %v, the sync takes a second", waited)
		}
		l.ended <- err
		l.wantLog("Sync failed and is retried", 0)
	})
}

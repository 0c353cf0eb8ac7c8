package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRandomFaults runs random events and faults. The fake checks at each step that the
// engine knows what the kernel has; when the faults stop, the kernel must reach the
// wanted state without further events.
func TestRandomFaults(t *testing.T) {
	const seeds, steps = 60, 150
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			run(t, func(s *Settings) { s.MinSyncPeriod = 10 * ms }, func(l *lab) {
				g := &gambler{lab: l, Rand: rand.New(rand.NewPCG(seed, 1)), services: map[string]*v1.Service{}}
				l.plane.refusesNew = seed%2 == 0
				if g.IntN(2) == 0 {
					g.misfortune()
				}
				l.start()
				g.services["api"], g.services["web"] = service("api", 1), service("web", 2)
				for range steps {
					g.event()
					for _, r := range g.Refused() { // As anybody may, at any time.
						if r.Refused == "" || r.Pending.IsZero() {
							t.Errorf("%+v is refused", r)
						}
					}
					if g.IntN(3) == 0 {
						g.misfortune()
					}
					if g.IntN(2) == 0 {
						time.Sleep(time.Duration(g.IntN(400)) * ms)
					}
				}
				l.plane.with(func(f *fakePlane) { f.faults, f.refuse = nil, nil })
				time.Sleep(retryMax + time.Second)
				l.wantRows()
				l.wantRefused()
				l.plane.takeCalls()
				time.Sleep(time.Minute)
				l.wantCalls() // All is well, and nothing is retried.
			})
		})
	}
}

// gambler does things to an engine by chance.
type gambler struct {
	*lab
	*rand.Rand
	services map[string]*v1.Service
}

func (g *gambler) name() string { return fmt.Sprintf("s%d", g.IntN(8)) }

// event is what may come from a source.
func (g *gambler) event() {
	name := g.name()
	switch g.IntN(8) {
	case 0:
		g.OnNodeAdd(&v1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:   "here",
			Labels: map[string]string{v1.LabelTopologyZone: g.name()},
		}})
	case 1:
		g.OnServiceCIDRAdd(serviceCIDR(fmt.Sprintf("10.%d.0.0/16", g.IntN(100))))
	case 2, 3, 4:
		var nums []int
		for range g.IntN(4) {
			nums = append(nums, 1+g.IntN(9))
		}
		g.OnEndpointSliceAdd(endpoints(name, nums...))
	case 5:
		g.OnEndpointSliceDelete(endpoints(name))
	default:
		old := g.services[name]
		if old != nil && g.IntN(3) == 0 {
			delete(g.services, name)
			g.OnServiceDelete(old)
			return
		}
		// Few addresses, so that Services claim each other's.
		g.services[name] = service(name, 1+g.IntN(12))
		g.OnServiceUpdate(old, g.services[name])
	}
}

// misfortune is what may come from a kernel.
func (g *gambler) misfortune() {
	victim := key(g.name())
	switch g.IntN(8) {
	case 0, 1:
		g.plane.with(func(f *fakePlane) { f.faults = append(f.faults, nothing) })
	case 2:
		g.plane.with(func(f *fakePlane) { f.faults = append(f.faults, halfWay, someRows) })
	case 3:
		g.plane.with(func(f *fakePlane) { f.faults = append(f.faults, noFault, slowness) })
	case 4:
		synctest.Wait()
		g.plane.drift(victim)
	case 5, 6:
		g.plane.with(func(f *fakePlane) { f.refuse[victim] = "set is full" })
	default:
		g.plane.with(func(f *fakePlane) { clear(f.refuse) })
	}
}

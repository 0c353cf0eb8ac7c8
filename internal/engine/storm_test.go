package engine

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// slowPlane takes everything, and its time for it.
type slowPlane struct {
	idlePlane
	applies, rows int
	last          map[proxy.PortKey]*proxy.ServicePort
}

const applyTime = 5 * time.Millisecond

func (p *slowPlane) Apply(_ context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	time.Sleep(applyTime)
	p.applies++
	p.rows += len(changed.Rows)
	for _, key := range changed.Rows {
		p.last[key] = want.Rows[key]
	}
	return nil, nil
}

// TestEventStorm sends 10,000 events of 100 Services within a second: the pending changes
// are bounded by the number of Services, the syncs by the minimum interval, and the last
// event of each Service is in force in the end.
func TestEventStorm(t *testing.T) {
	const services, events = 100, 10_000
	synctest.Test(t, func(t *testing.T) {
		p := &slowPlane{last: map[proxy.PortKey]*proxy.ServicePort{}}
		e := New(Settings{Observer: nobody{}, Dataplane: p, Resolver: resolve.New(resolve.Settings{NodeName: "here"}), SyncPeriod: time.Hour})
		for i := range services {
			e.OnServiceUpdate(nil, service(fmt.Sprint("web-", i), 1+i))
		}
		e.OnNodeSynced()
		e.OnServiceSynced()
		e.OnEndpointSlicesSynced()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.SyncLoop(ctx) }()
		synctest.Wait()
		most := 0
		for n := range events {
			e.OnEndpointSliceUpdate(nil, endpoints(fmt.Sprint("web-", n%services), 1+n%200))
			e.mu.Lock()
			most = max(most, e.resolver.Endpoints.Pending())
			e.mu.Unlock()
			time.Sleep(time.Second / events)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if atMost := int(time.Second/applyTime) + 2; p.applies > atMost || p.applies < 10 {
			t.Errorf("%d steps of %v in a second; want at most %d", p.applies, applyTime, atMost)
		}
		if most > services {
			t.Errorf("%d changes were pending of %d Services", most, services)
		}
		want := e.resolver.State().Rows
		for key, row := range want {
			if p.last[key] != row {
				t.Errorf("the last change of %v was not written", key)
			}
		}
		t.Logf("%d events: %d steps of %d rows, at most %d changes pending", events, p.applies, p.rows, most)
		stop()
		if err := <-ended; err != nil || len(want) != services {
			t.Errorf("%d rows, error %v", len(want), err)
		}
	})
}

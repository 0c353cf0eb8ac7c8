package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"sluice/internal/conformance"
)

// Faults returns the faults of the API server and of the connection to it.
func (a *api) Faults() []conformance.Fault {
	nothing := func(context.Context) error { return nil }
	shut := func(context.Context) error {
		a.gate.Shut()
		return nil
	}
	stop := func() {}
	return []conformance.Fault{
		{
			Name:  "watches are cut",
			Start: func(context.Context) error { stop = a.cutRepeatedly(); return nil },
			Stop:  func(context.Context) error { stop(); return nil },
		},
		{
			Name: "the API server is out of reach", Start: shut,
			Stop: func(context.Context) error { return a.gate.Open() },
		},
		{
			Name: "etcd is killed and comes back", Start: nothing,
			Stop: func(ctx context.Context) error {
				bed.KillEtcd()
				return errors.Join(bed.StartEtcd(ctx), bed.AwaitAPIServer(ctx))
			},
		},
		{
			Name: "the API server is killed and comes back", Start: nothing,
			Stop: func(ctx context.Context) error {
				bed.KillAPIServer()
				return bed.StartAPIServer(ctx)
			},
		},
		{
			Name: "the API server has forgotten (410 Gone)", Start: shut,
			Stop: func(ctx context.Context) error {
				bed.KillAPIServer()
				return errors.Join(bed.Compact(ctx), bed.StartAPIServer(ctx), a.gate.Open())
			},
		},
	}
}

// cutRepeatedly cuts all watches again and again until the returned function is called.
func (a *api) cutRepeatedly() (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for {
			a.gate.Cut()
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		close(done)
		running.Wait()
	}
}

package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"sluice/internal/conformance"
)

// Troubles are what may befall the API server, and the way to it.
func (a *api) Troubles() []conformance.Trouble {
	nothing := func(context.Context) error { return nil }
	shut := func(context.Context) error {
		a.gate.Shut()
		return nil
	}
	stop := func() {}
	return []conformance.Trouble{
		{
			Name:  "watches are cut",
			Begin: func(context.Context) error { stop = a.cutAndCut(); return nil },
			End:   func(context.Context) error { stop(); return nil },
		},
		{
			Name: "the API server is out of reach", Begin: shut,
			End: func(context.Context) error { return a.gate.Open() },
		},
		{
			Name: "etcd is killed and comes back", Begin: nothing,
			End: func(ctx context.Context) error {
				bed.KillEtcd()
				return errors.Join(bed.StartEtcd(ctx), bed.AwaitAPIServer(ctx))
			},
		},
		{
			Name: "the API server is killed and comes back", Begin: nothing,
			End: func(ctx context.Context) error {
				bed.KillAPIServer()
				return bed.StartAPIServer(ctx)
			},
		},
		{
			Name: "the API server has forgotten (410 Gone)", Begin: shut,
			End: func(ctx context.Context) error {
				bed.KillAPIServer()
				return errors.Join(bed.Compact(ctx), bed.StartAPIServer(ctx), a.gate.Open())
			},
		},
	}
}

// cutAndCut cuts all watches again and again, until what it returns is called.
func (a *api) cutAndCut() (stop func()) {
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

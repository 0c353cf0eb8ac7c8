package app

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"sluice/internal/proxy"
)

// takeover removes what kube-proxy left, once our own rules are in force: never
// before, so that there is no moment without rules. Those of its iptables and
// ipvs modes would go on sending connections to endpoints that have long gone.
type takeover struct {
	once  sync.Once
	ready chan struct{}
}

func newTakeover() *takeover { return &takeover{ready: make(chan struct{})} }

// Applied notes that rules are in force.
func (t *takeover) Applied(context.Context, *proxy.State, *proxy.Delta) {
	t.once.Do(func() { close(t.ready) })
}

// Run removes the leftovers once, and then has nothing more to do until ctx ends.
func (t *takeover) Run(ctx context.Context) error {
	select {
	case <-t.ready:
		if err := removeLeftovers(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Some of what kube-proxy left is still there, --cleanup tries again")
		}
		<-ctx.Done()
	case <-ctx.Done():
	}
	return nil
}

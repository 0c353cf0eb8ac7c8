package source

import (
	"context"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Start runs a source at once, so that it reads while its handler is still being made. Run of
// the returned source, which is called once, names the handler; what is delivered before waits.
// The source ends with either context.
func Start(ctx context.Context, s Source) Source {
	ctx, stop := context.WithCancel(ctx)
	r := &started{stop: stop, gate: gate{ended: ctx.Done(), open: make(chan struct{})}, result: make(chan error, 1)}
	go func() { r.result <- s.Run(ctx, &r.gate) }()
	return r
}

// started is a source that runs already.
type started struct {
	stop   context.CancelFunc
	gate   gate
	result chan error // of the source's Run
}

// Run implements [Source].
func (s *started) Run(ctx context.Context, h Handler) error {
	defer context.AfterFunc(ctx, s.stop)()
	s.gate.to = h
	close(s.gate.open)
	return <-s.result
}

// gate is a handler whose calls wait until there is another one to pass them to.
type gate struct {
	ended <-chan struct{} // then calls are dropped
	open  chan struct{}   // closed once to is set
	to    Handler
}

func (g *gate) pass(call func(Handler)) {
	select {
	case <-g.open:
		call(g.to)
	case <-g.ended:
	}
}

func (g *gate) OnServiceUpdate(old, cur *v1.Service) {
	g.pass(func(h Handler) { h.OnServiceUpdate(old, cur) })
}

func (g *gate) OnEndpointSliceUpdate(old, cur *discoveryv1.EndpointSlice) {
	g.pass(func(h Handler) { h.OnEndpointSliceUpdate(old, cur) })
}

func (g *gate) OnNodeUpdate(old, cur *v1.Node) {
	g.pass(func(h Handler) { h.OnNodeUpdate(old, cur) })
}

func (g *gate) OnServiceCIDRUpdate(old, cur *networkingv1.ServiceCIDR) {
	g.pass(func(h Handler) { h.OnServiceCIDRUpdate(old, cur) })
}

func (g *gate) OnServiceSynced()        { g.pass(Handler.OnServiceSynced) }
func (g *gate) OnEndpointSlicesSynced() { g.pass(Handler.OnEndpointSlicesSynced) }
func (g *gate) OnNodeSynced()           { g.pass(Handler.OnNodeSynced) }
func (g *gate) OnServiceCIDRsSynced()   { g.pass(Handler.OnServiceCIDRsSynced) }

package source_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sluice/internal/source"
	"sluice/internal/source/sourcetest"
)

// events is a source that delivers one event of each kind, and returns its error when ctx
// has ended.
type events struct{ err error }

func (e events) Run(ctx context.Context, h source.Handler) error {
	h.OnNodeUpdate(nil, &v1.Node{ObjectMeta: named("node", "1")})
	h.OnNodeSynced()
	h.OnServiceCIDRUpdate(nil, &networkingv1.ServiceCIDR{ObjectMeta: named("cidr", "1")})
	h.OnServiceCIDRsSynced()
	h.OnServiceUpdate(nil, &v1.Service{ObjectMeta: named("service", "1")})
	h.OnServiceSynced()
	h.OnEndpointSliceUpdate(nil, &discoveryv1.EndpointSlice{ObjectMeta: named("slice", "1")})
	h.OnEndpointSlicesSynced()
	<-ctx.Done()
	return e.err
}

var allEvents = []string{"+node node", "synced node", "+cidr cidr []", "synced cidr", "+svc service ", "synced svc", "+slice slice", "synced slice"}

// TestStart checks that a source that was started delivers everything to the handler that it
// gets later, and ends with the context that it gets with it.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		s := source.Start(t.Context(), events{failed})
		synctest.Wait()
		h, ended := &sourcetest.Recorder{}, make(chan error, 1)
		ctx, stop := context.WithCancel(t.Context())
		go func() { ended <- s.Run(ctx, h) }()
		synctest.Wait()
		h.Want(t, allEvents...)
		if len(ended) > 0 {
			t.Errorf("ended with %v while its context lasts", <-ended)
		}
		stop()
		if err := <-ended; !errors.Is(err, failed) {
			t.Errorf("error %v, want the source's", err)
		}
	})
}

// TestStartWithoutRun checks that a source that never gets a handler ends with its context.
func TestStartWithoutRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it fails if a goroutine is left
		ctx, stop := context.WithCancel(t.Context())
		source.Start(ctx, events{})
		synctest.Wait()
		stop()
	})
}

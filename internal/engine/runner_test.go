package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"sluice/internal/resolve"
)

// busyPlane is a dataplane with work of its own.
type busyPlane struct {
	idlePlane
	end   chan error
	ended bool
}

func (b *busyPlane) Run(ctx context.Context) error {
	defer func() { b.ended = true }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-b.end:
		return err
	}
}

// TestDataplaneWithWorkOfItsOwn checks that Run of a dataplane ends with the engine, and
// that the engine ends if Run does.
func TestDataplaneWithWorkOfItsOwn(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*busyPlane, func())
		want string // in the error; empty: none
	}{
		{"the engine is stopped", func(_ *busyPlane, stop func()) { stop() }, ""},
		{"it fails", func(b *busyPlane, _ func()) { b.end <- errors.New("listen: address in use") }, "listen: address in use"},
		{"it just ends", func(b *busyPlane, _ func()) { b.end <- nil }, "run the dataplane: it stopped without an error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &busyPlane{end: make(chan error)}
				e := New(Settings{Observer: nobody{}, Dataplane: b, Resolver: resolve.New(resolve.Settings{NodeName: "here"})})
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				got := make(chan error, 1)
				go func() { got <- e.SyncLoop(ctx) }()
				synctest.Wait()
				tt.end(b, stop)
				err := <-got
				if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("SyncLoop gave %v, want %q", err, tt.want)
				}
				if !b.ended {
					t.Error("the dataplane still works")
				}
			})
		})
	}
}

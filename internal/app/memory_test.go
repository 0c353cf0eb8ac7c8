package app

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// TestTuneGC wants one thread of Go's once rules are in force, and at the end
// the bound of garbage that there was before.
func TestTuneGC(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMAXPROCS", "")
	threads, percent := runtime.GOMAXPROCS(0), debug.SetGCPercent(100)
	defer func() {
		runtime.GOMAXPROCS(threads)
		debug.SetGCPercent(percent)
	}()
	runtime.GOMAXPROCS(2)
	ctx, stop := context.WithCancel(t.Context())
	inForce, done := make(chan struct{}), make(chan error, 1)
	close(inForce)
	go func() { done <- tuneGC(ctx, inForce, true) }()
	for deadline := time.Now().Add(10 * time.Second); runtime.GOMAXPROCS(0) != 1; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("there is more than one thread")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if now := debug.SetGCPercent(100); now != 100 {
		t.Errorf("the bound is %d afterwards, want what it was before, 100", now)
	}
}

// TestTuneGCHeedsTheEnvironment leaves alone what somebody has set.
func TestTuneGCHeedsTheEnvironment(t *testing.T) {
	t.Setenv("GOGC", "100")
	t.Setenv("GOMAXPROCS", "2")
	before := runtime.GOMAXPROCS(0)
	settleGC(true)
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("%d threads, want %d as before", now, before)
	}
}

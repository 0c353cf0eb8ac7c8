package testbed

import (
	"testing"
	"time"

	"sluice/internal/conformance/traffic"
)

// RepairTime is how long a repair may take: a second, and what a busy machine adds to it.
const RepairTime = 3 * time.Second

// Eventually polls until a condition holds.
func Eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	EventuallyWithin(t, 15*time.Second, what, holds)
}

// EventuallyWithin is [Eventually] with another limit.
func EventuallyWithin(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	if !Within(limit, holds) {
		t.Fatalf("timed out after %v waiting for: %s", traffic.Scaled(limit), what)
	}
}

// Within reports whether a condition holds within some time.
func Within(d time.Duration, holds func() bool) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(traffic.Scaled(d)); time.Now().Before(deadline); <-tick.C {
		if holds() {
			return true
		}
	}
	return false
}

// Pause lets time pass while something goes on in the background.
func Pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

package app

import (
	"errors"
	"fmt"
	"testing"

	"sluice/internal/proxy"
)

// TestOnlyErrors checks which errors of a clean-up are known, so that it is not
// retried with back-off.
func TestOnlyErrors(t *testing.T) {
	used, draining := fmt.Errorf("remove chain: %w", proxy.ErrInUse), fmt.Errorf("3 %w", proxy.ErrDraining)
	other := errors.New("broken")
	for _, c := range []struct {
		name        string
		err         error
		inUse, both bool
	}{
		{"in use", errors.Join(used, fmt.Errorf("mode: %w", used)), true, true},
		{"draining", draining, false, true},
		{"draining and in use", errors.Join(used, draining), false, true},
		{"draining and broken", errors.Join(draining, fmt.Errorf("mode: %w", other)), false, false},
		{"broken", other, false, false},
	} {
		if got := onlyErrors(c.err, proxy.ErrInUse); got != c.inUse {
			t.Errorf("%s: in use alone %v, want %v", c.name, got, c.inUse)
		}
		if got := onlyErrors(c.err, proxy.ErrInUse, proxy.ErrDraining); got != c.both {
			t.Errorf("%s: in use or draining %v, want %v", c.name, got, c.both)
		}
	}
}

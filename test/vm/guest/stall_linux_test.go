package guest

import (
	"io"
	"testing"
)

// TestStalls gives a guest up whose kernel reports again and again that it has stalled, and not one that
// a busy machine has kept waiting.
func TestStalls(t *testing.T) {
	given := 0
	c := &console{out: io.Discard, stalled: func() { given++ }}
	for range stalls - 1 {
		_, _ = io.WriteString(c, "[   26.874634] rcu: INFO: rcu_preempt self-detected stall on CPU\r\n[   26.8] rcu: more\r\n")
	}
	if given > 0 {
		t.Error("the guest is given up too early")
	}
	_, _ = io.WriteString(c, "[  152.918550] rcu: INFO: rcu_preempt self-detected stall on CPU\r\n")
	if given != 1 {
		t.Errorf("the guest is given up %d times, want once", given)
	}
}

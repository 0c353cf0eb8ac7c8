package process

import (
	"context"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	tests := []struct {
		name, text string
		want       stat
		fails      bool
	}{
		{"plain", "12 (etcd) S 1 11 12 0 -1 4194304 1 2 3 4 100 20 7 3 20 0 9 0", stat{group: 11, ticks: 130}, false},
		{"a name with parentheses", "12 (a) b) S 1 12 12 0 -1 4194304 1 2 3 4 1 2 3 4 20 0 9 0", stat{group: 12, ticks: 10}, false},
		{"cut off", "12 (etcd) S 1 12", stat{}, true},
		{"not a number", "12 (etcd) S 1 12 12 0 -1 4194304 1 2 3 4 1 2 x 3 20 0", stat{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat(tt.text)
			if (err != nil) != tt.fails || err == nil && got != tt.want {
				t.Errorf("parseStat: got %+v, %v, want %+v, an error: %v", got, err, tt.want, tt.fails)
			}
		})
	}
}

// TestMachine reads the machine's own files.
func TestMachine(t *testing.T) {
	sizes, err := Sizes("/proc/meminfo")
	if err != nil || sizes["MemTotal"] < 1<<20 {
		t.Errorf("Sizes: got MemTotal %d, %v", sizes["MemTotal"], err)
	}
	if busy, err := machineCPU(); err != nil || busy <= 0 {
		t.Errorf("machineCPU: got %v, %v", busy, err)
	}
}

// TestSettle waits for what comes to rest, and not forever for what does not.
func TestSettle(t *testing.T) {
	steps := []time.Duration{0, 5, 5, 6} // two readings for each window
	cpu := func() (time.Duration, error) {
		now := steps[0]
		steps = steps[1:]
		return now, nil
	}
	if err := settle(t.Context(), cpu, 0, 1, time.Hour); err != nil || len(steps) != 0 {
		t.Errorf("settle: got %v with %d readings left, want it to take both windows", err, len(steps))
	}
	var busy time.Duration
	for _, err := range []error{nil, context.Canceled} {
		ctx, cancel := context.WithCancel(t.Context())
		if err != nil {
			cancel()
		}
		got := settle(ctx, func() (time.Duration, error) { busy++; return busy, nil }, 0, 0, time.Millisecond)
		if cancel(); got != err {
			t.Errorf("settle of something busy: got %v, want %v", got, err)
		}
	}
}

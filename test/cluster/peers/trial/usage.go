package trial

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"sluice/test/cluster/peers/figures"
)

// idle watches a proxy that has nothing to do.
func (t *trial) idle(ctx context.Context) error {
	if err := t.settle(ctx, quiet); err != nil {
		return err
	}
	before, err := t.proxy.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	time.Sleep(t.Limits.Idle)
	after, err := t.proxy.CPU()
	if err != nil {
		return err
	}
	t.result.Idle = &figures.Idle{CPU: figures.SecondsOf(after - before), Window: figures.SecondsOf(time.Since(began))}
	return nil
}

// memory reads what the proxy occupies now and occupied at most.
func (t *trial) memory() error {
	m, err := t.proxy.Memory()
	if err != nil {
		return err
	}
	t.result.Memory = &figures.Memory{Steady: figures.Bytes(m.Resident), Peak: figures.Bytes(m.Peak)}
	return nil
}

// keepMemory is memory of a proxy that has not come far, if it still runs.
func (t *trial) keepMemory() {
	if t.proxy != nil && t.proxy.Ended() == nil {
		t.stage(context.Background(), figures.StageMemory, func(context.Context) error { return t.memory() })
	}
}

// largest notes the peak of the process or of any of its children, unless that
// of an earlier process is known. The process must have ended.
func (t *trial) largest() {
	u, err := t.proxy.Usage()
	if err == nil && t.result.Memory != nil && t.result.Memory.Largest == 0 {
		t.result.Memory.Largest = max(figures.Bytes(u.Peak), t.result.Memory.Peak)
	}
}

// kernelMemory is what the kernel occupies for objects of its own. All of the
// machine counts, so the difference of two is an estimate.
func kernelMemory() (figures.Bytes, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the kernel's memory: %w", err)
	}
	var sum figures.Bytes
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		// Slab without what can be taken back at once, which is mostly of files.
		case "SUnreclaim", "Percpu", "VmallocUsed":
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read the kernel's memory: %w", err)
			}
			sum += figures.Bytes(kib << 10)
		}
	}
	return sum, nil
}

// Calm waits until the machine has little to do, but no longer than limit: the
// kernel goes on for a while after a node with many rules is gone.
func Calm(ctx context.Context, limit time.Duration) error {
	const window = 500 * time.Millisecond
	for began := time.Now(); time.Since(began) < limit && ctx.Err() == nil; {
		busy, all, err := processors()
		if err != nil {
			return err
		}
		time.Sleep(window)
		busyNow, allNow, err := processors()
		if err != nil || (busyNow-busy)*10 <= allNow-all {
			return err
		}
	}
	return ctx.Err()
}

// processors returns how long all processors have been busy, and all their time.
func processors() (busy, all int64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("read the processors' time: %w", err)
	}
	const idle, wait, guest = 3, 4, 8 // fields; those from guest on are in others already
	first, _, _ := strings.Cut(string(text), "\n")
	for i, f := range strings.Fields(first)[1:] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read the processors' time: %w", err)
		}
		if i >= guest {
			break
		}
		all += n
		if i != idle && i != wait {
			busy += n
		}
	}
	return busy, all, nil
}

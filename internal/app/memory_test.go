package app

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/fstest"
	"time"
)

// TestTuneGC checks that there is one thread when rules are in force, and that the
// GC percentage is restored at the end.
func TestTuneGC(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMAXPROCS", "")
	t.Setenv("GOMEMLIMIT", "")
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
			t.Fatal("GOMAXPROCS is more than 1")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if now := debug.SetGCPercent(100); now != 100 {
		t.Errorf("the GC percentage is %d afterwards, want 100 as before", now)
	}
}

// TestTuneGCHeedsTheEnvironment checks that environment variables take precedence.
func TestTuneGCHeedsTheEnvironment(t *testing.T) {
	t.Setenv("GOGC", "100")
	t.Setenv("GOMAXPROCS", "2")
	before := runtime.GOMAXPROCS(0)
	settleGC(true)
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("%d threads, want %d as before", now, before)
	}
}

// TestMemoryLimit reads the limits of containers, systemd units and hosts.
func TestMemoryLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"another system", nil, math.MaxInt64},
		{"none", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, math.MaxInt64},
		{"a container", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "67108864\n"}, 64 << 20},
		{
			"a unit below a slice with less", map[string]string{
				"proc/self/cgroup":                                    "0::/small.slice/sluice.service\n",
				"sys/fs/cgroup/small.slice/memory.max":                "1000000\n",
				"sys/fs/cgroup/small.slice/sluice.service/memory.max": "2000000\n",
			}, 1000000,
		},
		{
			"version 1, in a container that sees the host's name", map[string]string{
				"proc/self/cgroup":                           "5:devices:/kubepods/pod1\n4:cpu,memory:/kubepods/pod1\n0::/\n",
				"sys/fs/cgroup/memory/memory.limit_in_bytes": "3000000\n", "sys/fs/cgroup/devices/memory.max": "1",
			}, 3000000,
		},
	} {
		host := fstest.MapFS{}
		for name, text := range c.files {
			host[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := memoryLimit(host); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

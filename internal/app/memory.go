package app

import (
	"context"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// GC percentages (GOGC): while the initial objects are read, most of which become
// garbage at once, and after that.
const (
	startGCPercent  = 50
	steadyGCPercent = 60
)

// ballast is the size of an allocation that is never touched, so that it takes no
// memory, but counts as live heap: it keeps the collector from running all the time
// while the heap is small.
const ballast = 8 << 20

// tuneGC keeps the memory of the process small until ctx ends, because it runs on
// every node. With 10,000 Services of ten endpoints the process needs 30 MiB, but
// would grow to four times as much in its first second. So garbage is collected
// early until ready is closed, and what was needed only until then is returned to
// the system. Near the memory limit of the cgroup the collector runs more often:
// being slow for a while is better than being killed.
//
// With oneThread, GOMAXPROCS is 1 from then on: an event passes through goroutines
// one after the other, and waking a second thread for each of them took a third of
// all CPU time. Modes with goroutines of their own keep their threads.
//
// The environment variables GOGC, GOMAXPROCS and GOMEMLIMIT take precedence.
func tuneGC(ctx context.Context, ready <-chan struct{}, oneThread bool) error {
	if os.Getenv("GOGC") == "" {
		previous := debug.SetGCPercent(startGCPercent)
		defer debug.SetGCPercent(previous)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		limit := memoryLimit(os.DirFS("/"))
		previous := debug.SetMemoryLimit(limit - limit/10) // the kernel also counts memory that Go does not
		defer debug.SetMemoryLimit(previous)
	}
	unused := make([]byte, ballast)
	select {
	case <-ready:
		runtime.KeepAlive(unused)
		settleGC(oneThread)
		<-ctx.Done()
	case <-ctx.Done():
	}
	return nil
}

// settleGC switches from the settings of the start to the steady ones.
func settleGC(oneThread bool) {
	if oneThread && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(steadyGCPercent)
		debug.FreeOSMemory()
	}
}

// memoryLimit returns the smallest memory limit, in bytes, of the process's cgroup
// and its ancestors, in cgroup v1 and v2; math.MaxInt64 if there is none.
func memoryLimit(host fs.FS) int64 {
	limit := int64(math.MaxInt64)
	cgroups, _ := fs.ReadFile(host, "proc/self/cgroup") // missing on other operating systems
	for line := range strings.Lines(string(cgroups)) {
		root, file := "sys/fs/cgroup", "memory.max"
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, at, _ := strings.Cut(rest, ":")
		if slices.Contains(strings.Split(controllers, ","), "memory") {
			root, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if controllers != "" {
			continue
		}
		for at = path.Clean("/" + at); ; at = path.Dir(at) {
			text, err := fs.ReadFile(host, path.Join(root, at, file))
			if n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil && n > 0 {
				limit = min(limit, n)
			}
			if at == "/" {
				break
			}
		}
	}
	return limit
}

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

// By how much, in percent, the heap may outgrow what is in use before it is
// collected: while everything there is comes in, most of which is garbage a
// moment later, and from then on.
const (
	startGarbage  = 50
	steadyGarbage = 60
)

// ballast is memory that is never touched and so never there, but counted as in
// use: it keeps the collector from running all the time while little is.
const ballast = 8 << 20

// tuneGC keeps the process small until ctx ends, for it runs on every node. At
// 10,000 Services of ten endpoints it needs 30 MiB, and would take four times as
// much for the sake of the first second. Later it does one thing after the other:
// a second thread would be woken for each of the goroutines that an event passes,
// and take a third of all CPU time for that. A process that carries connections
// itself keeps its threads.
//
// So it collects garbage early until rules are in force, and returns to the
// system what was needed only until then. Near the limit of its cgroup it collects
// more often: to be slow for a while is better than to be killed. Who has set the
// environment variables GOGC, GOMAXPROCS and GOMEMLIMIT knows better.
func tuneGC(ctx context.Context, inForce <-chan struct{}, oneThread bool) error {
	if os.Getenv("GOGC") == "" {
		usual := debug.SetGCPercent(startGarbage)
		defer debug.SetGCPercent(usual)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		limit := memoryLimit(os.DirFS("/"))
		usual := debug.SetMemoryLimit(limit - limit/10) // the kernel counts more than Go does
		defer debug.SetMemoryLimit(usual)
	}
	unused := make([]byte, ballast)
	select {
	case <-inForce:
		runtime.KeepAlive(unused)
		settleGC(oneThread)
		<-ctx.Done()
	case <-ctx.Done():
	}
	return nil
}

func settleGC(oneThread bool) {
	if oneThread && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(steadyGarbage)
		debug.FreeOSMemory()
	}
}

// memoryLimit returns how many bytes the process's cgroup and those above it allow,
// by either version of cgroups. Without a limit it is the largest number.
func memoryLimit(host fs.FS) int64 {
	limit := int64(math.MaxInt64)
	cgroups, _ := fs.ReadFile(host, "proc/self/cgroup") // other systems have none
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

package app

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
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
// system what was needed only until then. Who has set the environment variables
// GOGC and GOMAXPROCS knows better.
func tuneGC(ctx context.Context, inForce <-chan struct{}, oneThread bool) error {
	if os.Getenv("GOGC") == "" {
		usual := debug.SetGCPercent(startGarbage)
		defer debug.SetGCPercent(usual)
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

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

// thrift keeps the process small, for it runs on every node. At 10,000 Services
// of ten endpoints it needs 30 MiB, and would take four times as much for the
// sake of the first second. Later it does one thing after the other: a second
// thread would be woken for each of the goroutines that an event passes, and
// take a third of all CPU time for that.
type thrift struct {
	ready <-chan struct{} // closed when rules are in force
}

func newThrift(ready <-chan struct{}) *thrift { return &thrift{ready} }

// Run collects garbage early until rules are in force, and returns to the
// system what was needed only until then. Who has set the environment variables
// GOGC and GOMAXPROCS knows better.
func (t *thrift) Run(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		usual := debug.SetGCPercent(startGarbage)
		defer debug.SetGCPercent(usual)
	}
	unused := make([]byte, ballast)
	select {
	case <-t.ready:
		runtime.KeepAlive(unused)
		t.settle()
		<-ctx.Done()
	case <-ctx.Done():
	}
	return nil
}

func (t *thrift) settle() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(steadyGarbage)
		debug.FreeOSMemory()
	}
}

//go:build linux

// Command bench measures what the design promises of the core and prints one table: the cost of one
// change for different numbers of Services, the first write compared with a bare netlink loop, the
// resolver's memory. Figures that are compared come from the same run. It needs root to create its
// own network namespace.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	output := flag.String("output", "", "also write the table as Markdown to this file")
	flag.Parse()
	if err := run(*output); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func run(output string) error {
	runtime.LockOSThread() // a network namespace belongs to a thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("create a network namespace (needs root): %w", err)
	}
	var r report
	ctx := context.Background()
	for _, part := range []struct {
		what    string
		measure func(context.Context, *report) error
	}{
		{"one change against the number of Services", measureApply},
		{"a change of the number of endpoints", measureCounts},
		{"one endpoint of very many", measureLarge},
		{"connections with session affinity", measureDatapath},
		{"a flow that is open", measureOpenFlow},
		{"connections that are counted", measureTraffic},
		{"the first write against a bare loop", measureSync},
		{"the resolver", measureResolver},
		{"changes while the status is asked for", measureStatus},
	} {
		fmt.Fprintf(os.Stderr, "measuring %s ...\n", part.what)
		if err := part.measure(ctx, &r); err != nil {
			return fmt.Errorf("measure %s: %w", part.what, err)
		}
		debug.FreeOSMemory()
	}
	fmt.Print(r.text())
	if output != "" {
		if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(output, []byte(r.markdown()), 0o644); err != nil {
			return err
		}
	}
	for _, x := range r.rows {
		if !x.holds {
			return fmt.Errorf("%s is %s, but the promise is %s", x.what, x.figure, x.promise)
		}
	}
	return nil
}

// report is the table of figures and promises.
type report struct {
	rows []row
}

type row struct {
	what, figure, promise string
	holds                 bool
}

func (r *report) add(what, figure, promise string, holds bool) {
	r.rows = append(r.rows, row{what, figure, promise, holds})
}

// note adds a figure without a promise.
func (r *report) note(what, figure string) { r.add(what, figure, "", true) }

func (r *report) text() string {
	var b strings.Builder
	w := [3]int{4, 6, 7}
	for _, x := range r.rows {
		w[0], w[1], w[2] = max(w[0], len(x.what)), max(w[1], len(x.figure)), max(w[2], len(x.promise))
	}
	fmt.Fprintf(&b, "%-*s  %-*s  %-*s\n", w[0], "WHAT", w[1], "FIGURE", w[2], "PROMISE")
	for _, x := range r.rows {
		fmt.Fprintf(&b, "%-*s  %-*s  %-*s  %s\n", w[0], x.what, w[1], x.figure, w[2], x.promise, x.verdict())
	}
	return b.String()
}

func (x row) verdict() string {
	switch {
	case x.promise == "":
		return ""
	case x.holds:
		return "holds"
	default:
		return "DOES NOT HOLD"
	}
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The core, measured\n\nWritten by `make bench`: %s, Linux %s, %d CPUs. Ratios are from one run.\n\n", runtime.Version(), kernel(), runtime.NumCPU())
	fmt.Fprintf(&b, "| what | figure | promise | |\n|---|---|---|---|\n")
	for _, x := range r.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", x.what, x.figure, x.promise, x.verdict())
	}
	return b.String()
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "?"
	}
	return unix.ByteSliceToString(u.Release[:])
}

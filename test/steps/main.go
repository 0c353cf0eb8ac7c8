//go:build linux

// Command steps runs everything that make test is made of, as steps beside each other, and keeps
// their output apart. Each step is a target of the Makefile, which a person can run alone. What
// failed is shown as soon as its step has ended. At the end, tables say how long each step and each
// package took and how many tests it ran, and why tests were skipped.
//
//	go run ./test/steps              all steps of make test
//	go run ./test/steps lint page    these
//	go run ./test/steps -set check   all steps of make check
//
// Its last line has the form "412 passed, 0 failed, 3 skipped".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/test/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

// signals end the program and all of its steps.
var signals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// errFailed says no more, because the report has shown what failed.
var errFailed = errors.New("something failed")

func run(ctx context.Context) error {
	set := flag.String("set", "test", "run the steps of this target: "+strings.Join(slices.Sorted(maps.Keys(sets)), ", "))
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "Usage: steps [flags] [step...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	chosen, err := choose(sets[*set], flag.Args())
	if err != nil {
		return fmt.Errorf("set %q: %w", *set, err)
	}
	root, err := programs.Root()
	if err != nil {
		return err
	}
	logs, err := logFolder(root)
	if err != nil {
		return err
	}
	begin := time.Now()
	p := printer{begin: begin, out: os.Stdout, logs: logs}
	c := commands{logs: logs, grace: 10 * time.Second, command: func(ctx context.Context, s step) *exec.Cmd {
		return makeCommand(ctx, root, s, chosen)
	}}
	results := schedule{cores: machine, run: c.run, started: p.started, ended: p.ended}.runAll(ctx, chosen)
	p.tables(results)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	if slices.ContainsFunc(results, (*result).failed) {
		return errFailed
	}
	return nil
}

// logFolder returns a folder for the output of steps. Where root has run make test before, others
// cannot write to the usual one.
func logFolder(root string) (string, error) {
	dir := filepath.Join(root, ".cache", "steps", "logs")
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = unix.Access(dir, unix.W_OK)
	}
	if errors.Is(err, fs.ErrPermission) {
		return os.MkdirTemp("", "sluice-steps-")
	}
	return dir, err
}

// choose returns the steps with these names, in the order of the set; no names mean all.
func choose(all []step, names []string) ([]step, error) {
	if len(names) == 0 && len(all) > 0 {
		return all, nil
	}
	var known []string
	for _, s := range all {
		known = append(known, s.name)
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, fmt.Errorf("there is no step %q: there are %s", n, strings.Join(known, ", "))
		}
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(s step) bool { return !slices.Contains(names, s.name) })
	if len(chosen) == 0 {
		return nil, errors.New("there are no steps")
	}
	return chosen, nil
}

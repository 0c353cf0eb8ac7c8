// Command mutate changes one line of the proxy at a time, as a mistake would, and reports which
// test notices. The tree is not changed: the go command reads the changed file through an overlay.
// With --root it changes another tree, so that two versions of the tests can be compared.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	root := flag.String("root", ".", "mutate the tree in this `directory`")
	only := flag.String("only", "", "make only the mutations whose name matches this `pattern`")
	short := flag.Bool("short", false, "run the quick tests only: -short, without the packet tables")
	tables := flag.Bool("tables", false, "run the packet tables only")
	timeout := flag.Duration("timeout", 10*time.Minute, "limit of the tests of one package")
	flag.Parse()

	dir, err := filepath.Abs(*root)
	if err != nil {
		return err
	}
	selected, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	tests := &tester{root: dir, timeout: *timeout, passes: map[failure]bool{}}
	all := mutations()
	if err := check(dir, all); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m mutation) bool { return !selected.MatchString(m.name) })
	if len(all) == 0 {
		return fmt.Errorf("no mutation has a name that matches %s", *only)
	}
	phases := []phase{quick, everything}
	switch {
	case *short && *tables:
		return errors.New("--short and --tables exclude each other")
	case *short:
		phases = []phase{quick}
	case *tables:
		phases = []phase{packets}
	}
	fmt.Print(header(phases))
	open := 0
	for _, m := range all {
		results, err := tests.try(ctx, m, scratch, phases)
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !results[len(results)-1].caught() {
			open++
		}
		fmt.Print(row(m, results, len(phases)))
	}
	if open > 0 {
		return fmt.Errorf("no test notices %d mutations, or it is not known", open)
	}
	return nil
}

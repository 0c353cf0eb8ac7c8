//go:build linux

// Command kernels runs the tests that depend on the kernel on other kernels, each in a virtual
// machine, and on the machine's own kernel. With --share it runs only a random part of the packet
// tables.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"sluice/test/programs"
	"sluice/test/vm/guest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "Error: %v\n", err)
		os.Exit(1)
	}
}

// host stands for the kernel of this machine.
const host = "host"

func run(ctx context.Context) error {
	everywhere := append(guest.Kernels(), host)
	kernels := flag.String("kernels", strings.Join(everywhere, ","), "run on these `versions`")
	only := flag.String("suites", "", "run these `suites`; default: all of "+strings.Join(suiteNames(), ","))
	share := flag.Int("share", 1, "run one part in `n` of the packet tables that this machine's own kernel supports too")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano())%1e6, "select this part")
	events := flag.Bool("json", false, "print the tests as go test -json does")
	output := flag.String("output", "", "write the matrix to this `file`; its cells are kept beside it, in JSON")
	flag.Parse()

	root, err := programs.Root()
	if err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	programs, err := os.MkdirTemp("", "kernels-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(programs) }()
	p := &runner{ctx: ctx, programs: programs, share: *share, seed: *seed, output: *output, json: *events}
	if p.cache, err = guest.Open(func(what string) { fmt.Println("vm:", what) }); err != nil {
		return err
	}
	if *output != "" {
		if p.commit, err = commit(ctx, *output); err != nil {
			return err
		}
	}
	if *share > 1 {
		fmt.Printf("one part in %d of the packet tables; to run the same part again: --seed %d\n", *share, *seed)
	}
	return p.runAll(strings.Split(*kernels, ","), strings.FieldsFunc(*only, func(r rune) bool { return r == ',' }))
}

// runner runs suites on kernels.
type runner struct {
	ctx      context.Context
	cache    *guest.Cache
	programs string // directory of compiled tests
	share    int
	seed     uint64
	output   string // file of the matrix; empty means none
	json     bool   // print events
	commit   string // under test
}

// runAll runs suites on kernels sequentially, because each takes the whole machine.
func (p *runner) runAll(kernels, names []string) (err error) {
	for _, s := range suites {
		if len(names) > 0 && !slices.Contains(names, s.name) || p.share > 1 && s.part == partNone {
			continue
		}
		if failed := p.compile(s); failed != nil {
			return errors.Join(err, failed)
		}
		for _, k := range kernels {
			if slices.Contains(s.tooOld, k) {
				continue
			}
			c, failed := p.runSuite(s, k)
			if failed == nil && p.output != "" {
				failed = writeMatrix(p.output, c)
			}
			if failed != nil {
				return errors.Join(err, failed)
			}
			fmt.Printf("%-20s %-5s %s\n", s.name, k, c)
			err = errors.Join(err, c.err())
		}
	}
	return err
}

// commit describes the commit under test. Changes of the matrix itself are ignored.
func commit(ctx context.Context, matrix string) (string, error) {
	id, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("read the commit: %w", err)
	}
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ".", ":!"+matrix, ":!"+jsonFile(matrix)).Output()
	if err != nil {
		return "", fmt.Errorf("read what has changed since the commit: %w", err)
	}
	text := strings.TrimSpace(string(id))
	if len(changes) > 0 {
		text += " and changes"
	}
	return text, nil
}

// rng returns a source that depends on the seed and the suite only.
func (p *runner) rng(s suite) *rand.Rand {
	return rand.New(rand.NewPCG(p.seed, uint64(len(s.name))))
}

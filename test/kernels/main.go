//go:build linux

// Command kernels plays the tests that depend on the kernel under other kernels,
// each in a virtual machine, and on this machine's own. It plays all of them, or
// with --share a random part of what the machine's own kernel can play as well.
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

// host is the name of the machine's own kernel.
const host = "host"

func run(ctx context.Context) error {
	everywhere := append(guest.Kernels(), host)
	kernels := flag.String("kernels", strings.Join(everywhere, ","), "which `versions` to play on")
	only := flag.String("suites", "", "which `suites` to play; none: all of "+strings.Join(suiteNames(), ","))
	share := flag.Int("share", 1, "play one part in `n` of the packet tables that this machine's own kernel plays too")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano())%1e6, "which part that is")
	output := flag.String("output", "", "write the matrix to this `file`; its cells are kept beside it, in JSON")
	flag.Parse()

	root, err := guest.Root()
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
	p := &player{ctx: ctx, programs: programs, share: *share, seed: *seed, output: *output}
	if p.cache, err = guest.Open(func(what string) { fmt.Println("vm:", what) }); err != nil {
		return err
	}
	if *output != "" {
		if p.commit, err = commit(ctx, *output); err != nil {
			return err
		}
	}
	if *share > 1 {
		fmt.Printf("one part in %d of the packet tables; to play the same again: --seed %d\n", *share, *seed)
	}
	return p.play(strings.Split(*kernels, ","), strings.FieldsFunc(*only, func(r rune) bool { return r == ',' }))
}

// player plays suites on kernels.
type player struct {
	ctx      context.Context
	cache    *guest.Cache
	programs string // folder of compiled tests
	share    int
	seed     uint64
	output   string // the matrix's file, if any
	commit   string // that is played
}

// play plays suites on kernels, one after another, as each takes the whole machine.
func (p *player) play(kernels, names []string) (err error) {
	for _, s := range suites {
		if len(names) > 0 && !slices.Contains(names, s.name) || p.share > 1 && s.part == nothing {
			continue
		}
		program, failed := p.compile(s)
		if failed != nil {
			return errors.Join(err, failed)
		}
		for _, k := range kernels {
			if slices.Contains(s.tooOld, k) {
				continue
			}
			c, failed := p.playOne(s, k, program)
			if failed == nil && p.output != "" {
				failed = write(p.output, c)
			}
			if failed != nil {
				return errors.Join(err, failed)
			}
			fmt.Printf("%-20s %-5s %s\n", s.name, k, c)
			err = errors.Join(err, c.problem())
		}
	}
	return err
}

// commit says what is played. A changed matrix is no change of it.
func commit(ctx context.Context, matrix string) (string, error) {
	id, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "", fmt.Errorf("read the commit: %w", err)
	}
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ".", ":!"+matrix, ":!"+figures(matrix)).Output()
	if err != nil {
		return "", fmt.Errorf("read what has changed since the commit: %w", err)
	}
	text := strings.TrimSpace(string(id))
	if len(changes) > 0 {
		text += " and changes"
	}
	return text, nil
}

// rng is the same for the same seed and suite.
func (p *player) rng(s suite) *rand.Rand {
	return rand.New(rand.NewPCG(p.seed, uint64(len(s.name))))
}

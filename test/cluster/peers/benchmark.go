package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/peers/render"
	"sluice/test/cluster/peers/trial"
	"sluice/test/cluster/process"
	"sluice/test/cluster/testbed"
)

// benchmark is one run of the program.
type benchmark struct {
	programs
	began time.Time
	dir   string // for data and logs
}

// log prints a line with the time since the start.
func (b *benchmark) log(line string) {
	d := time.Since(b.began).Round(time.Second)
	fmt.Fprintf(os.Stderr, "[%02d:%02d] %s\n", int(d.Minutes()), int(d.Seconds())%60, line)
}

// run measures everything and writes the results.
func (b *benchmark) run(ctx context.Context) error {
	peers, err := plan(*peersFlag, *sizesFlag, *legacyFlag)
	if err != nil {
		return err
	}
	r := &figures.Report{}
	if !*fresh {
		if r, err = figures.Read(*output); err != nil {
			return err
		}
	}
	if err := b.build(ctx, *peersFlag); err != nil {
		return err
	}
	if err := b.describe(ctx, r); err != nil {
		return err
	}
	for _, size := range slices.SortedFunc(maps.Keys(peers), figures.Size.Compare) {
		if err = b.measure(ctx, r, size, peers[size]); err != nil {
			break // write what was measured so far
		}
	}
	if err := errors.Join(err, write(r, *output)); err != nil {
		return err
	}
	page, err := render.Markdown(r)
	fmt.Print(page)
	b.log(fmt.Sprintf("done; figures, table and pictures are in %s", filepath.Dir(*output)))
	return err
}

// plan returns the peers to measure at each size: they share one loaded API server.
func plan(names, modernSizes, legacySizes string) (map[figures.Size][]trial.Peer, error) {
	modern, err := sizes(modernSizes)
	if err != nil {
		return nil, err
	}
	legacy, err := sizes(legacySizes)
	if err != nil {
		return nil, err
	}
	out := map[figures.Size][]trial.Peer{}
	for _, name := range list(names) {
		program, mode, ok := strings.Cut(name, "/")
		if _, known := versions[program]; !ok || !known {
			return nil, fmt.Errorf("read peer %q: want program/mode, the program one of %s", name,
				strings.Join(slices.Sorted(maps.Keys(versions)), ", "))
		}
		in := modern
		if mode == "iptables" {
			in = legacy
		}
		for _, s := range in {
			out[s] = append(out[s], trial.Peer{Name: name, Program: program, Mode: mode, KubeProxy: versions[program] != ""})
		}
	}
	return out, nil
}

// list splits a flag at commas and spaces.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// sizes parses a list of sizes.
func sizes(text string) (out []figures.Size, err error) {
	for _, part := range list(text) {
		s, err := figures.ParseSize(part)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// measure measures peers at one size and saves the results after each.
func (b *benchmark) measure(ctx context.Context, r *figures.Report, size figures.Size, peers []trial.Peer) error {
	const small = 100 // with fewer Services, churn would change every Service all the time
	bench, err := b.newBench(ctx, size, false)
	if err != nil {
		return err
	}
	defer b.closeBench(bench)
	if size.Services < small {
		bench.Limits.Rates = limits.Rates[:1]
	}
	r.AddFloor(bench.Floor(ctx))
	for i, p := range peers {
		b.log(fmt.Sprintf("%s at %v (%d of %d)", p.Name, size, i+1, len(peers)))
		if err := process.SettleMachine(ctx); err != nil {
			return err
		}
		p.Program = b.proxies[p.Program]
		result := bench.Run(ctx, p)
		if err := ctx.Err(); err != nil {
			return errors.Join(errors.New("interrupted; figures of finished peers are kept"), err)
		}
		for _, rate := range limits.Rates[len(bench.Limits.Rates):] {
			result.SetMissing(figures.StageChange(rate), fmt.Sprintf("not measured below %d Services", small))
		}
		r.AddResult(result)
		if err := r.Write(*output); err != nil {
			return err
		}
	}
	return nil
}

// newBench starts a control plane with a load of a size, and waits until the machine is idle.
func (b *benchmark) newBench(ctx context.Context, size figures.Size, affinity bool) (*trial.Bench, error) {
	dir, err := os.MkdirTemp(b.dir, "cluster-")
	if err != nil {
		return nil, fmt.Errorf("create a directory: %w", err)
	}
	b.log(fmt.Sprintf("starting etcd and kube-apiserver for %v", size))
	bench := &trial.Bench{Watcher: b.watcher, Limits: limits, Log: b.log}
	bench.Cluster, err = testbed.Start(ctx, testbed.Settings{Etcd: b.etcd, APIServer: b.apiServer, Dir: dir, Bare: true})
	if err != nil {
		return nil, err
	}
	if bench.Load, err = load.New(ctx, bench.Cluster.ControlPlane, size, affinity); err == nil {
		err = process.SettleMachine(ctx)
	}
	if err != nil {
		b.closeBench(bench)
	}
	return bench, err
}

// closeBench stops a control plane. An error is only logged, because nothing depends on it.
func (b *benchmark) closeBench(bench *trial.Bench) {
	if err := bench.Cluster.Close(); err != nil {
		b.log(err.Error())
	}
}

// runCounts prints what a change of the number of endpoints costs Sluice, measured from outside:
// with two numbers of Services, and with session affinity.
func (b *benchmark) runCounts(ctx context.Context) error {
	const rate = 50
	const name = "sluice/nftables"
	if err := b.build(ctx, name); err != nil {
		return err
	}
	fmt.Println("| Services | session affinity | updates | CPU per update | against the first |\n|--:|---|--:|--:|--:|")
	var first figures.Seconds
	for _, x := range []struct {
		services int
		affinity bool
	}{{500, false}, {8000, false}, {500, true}} {
		bench, err := b.newBench(ctx, figures.Size{Services: x.services, Endpoints: 3}, x.affinity)
		if err != nil {
			return err
		}
		bench.ScaleRate = rate
		r := bench.Run(ctx, trial.Peer{Name: name, Program: b.proxies["sluice"], Mode: "nftables"})
		b.closeBench(bench)
		c := r.Change(rate)
		if c == nil {
			return fmt.Errorf("%d Services, affinity %v: %s", x.services, x.affinity, r.Why(figures.StageChange(rate)))
		}
		first = cmp.Or(first, c.PerUpdate())
		fmt.Printf("| %d | %v | %d | %v | %.2fx |\n", x.services, x.affinity, c.Updates, c.PerUpdate(), c.PerUpdate()/first)
	}
	return nil
}

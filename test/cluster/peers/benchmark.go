package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
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
	"sluice/test/cluster/testbed"
)

// small is below how many Services no churn is measured: there would be nothing
// else than churn.
const small = 100

// benchmark is one run of the program.
type benchmark struct {
	options
	began  time.Time
	dir    string // for data and logs
	report *figures.Report

	programs programs
	clusters int              // started so far
	cluster  *testbed.Cluster // nil: none runs
	load     *load.Load
}

// say shows what happens, with the time since the start.
func (b *benchmark) say(line string) {
	d := time.Since(b.began).Round(time.Second)
	fmt.Fprintf(os.Stderr, "[%02d:%02d] %s\n", int(d.Minutes()), int(d.Seconds())%60, line)
}

func (b *benchmark) run(ctx context.Context) error {
	plan, err := b.plan()
	if err != nil {
		return err
	}
	if !b.fresh {
		if b.report, err = figures.Read(b.output); err != nil {
			return err
		}
	}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	defer b.endCluster()
	for _, size := range slices.SortedFunc(maps.Keys(plan), figures.Size.Compare) {
		if err = b.measure(ctx, size, plan[size]); err != nil {
			break // what was found so far is worth a page
		}
	}
	if err := errors.Join(err, b.write(b.report, b.output)); err != nil {
		return err
	}
	page, err := render.Markdown(b.report)
	fmt.Print(page)
	b.say(fmt.Sprintf("done; figures, table and pictures are in %s", filepath.Dir(b.output)))
	return err
}

// prepare builds all programs and notes what the figures are of.
func (b *benchmark) prepare(ctx context.Context) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "kubeproxy136", "go.mod")); err != nil {
		return fmt.Errorf("run this in test/cluster: %w", err)
	}
	if err := b.build(ctx, dir); err != nil {
		return err
	}
	m, err := b.machine(ctx, dir)
	if err != nil {
		return err
	}
	b.report.SetMachine(m)
	b.report.Settings = nil
	for _, name := range settings {
		f := flag.Lookup(name)
		b.report.Settings = append(b.report.Settings, figures.Setting{Name: f.Usage, Value: f.Value.String()})
	}
	return nil
}

// plan says which peers are measured at each size: a loaded API server serves
// all of them.
func (b *benchmark) plan() (map[figures.Size][]trial.Peer, error) {
	modern, err := sizes(b.sizes)
	if err != nil {
		return nil, err
	}
	legacy, err := sizes(b.legacy)
	if err != nil {
		return nil, err
	}
	out := map[figures.Size][]trial.Peer{}
	for _, name := range list(b.peers) {
		program, mode, ok := strings.Cut(name, "/")
		if _, known := proxies[program]; !ok || !known {
			return nil, fmt.Errorf("read peer %q: want program/mode, the program one of %s", name,
				strings.Join(slices.Sorted(maps.Keys(proxies)), ", "))
		}
		in := modern
		if mode == "iptables" {
			in = legacy
		}
		for _, s := range in {
			out[s] = append(out[s], trial.Peer{Name: name, Program: program, Mode: mode})
		}
	}
	return out, nil
}

// list splits a flag at its commas.
func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// sizes reads a flag of sizes.
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

// measure measures peers at one size and keeps what was found after each.
func (b *benchmark) measure(ctx context.Context, size figures.Size, peers []trial.Peer) error {
	bench, err := b.bench(ctx, size, false)
	if err != nil {
		return err
	}
	rates := b.limits.Rates
	if size.Services < small {
		bench.Limits.Rates = rates[:1]
	}
	b.report.AddFloor(bench.Floor(ctx))
	for i, p := range peers {
		b.say(fmt.Sprintf("%s at %v (%d of %d)", p.Name, size, i+1, len(peers)))
		if err := trial.Calm(ctx); err != nil {
			return err
		}
		p.Program = b.programs.proxies[p.Program]
		r := bench.Run(ctx, p)
		if err := ctx.Err(); err != nil {
			return errors.Join(errors.New("interrupted; figures of finished peers are kept"), err)
		}
		for _, rate := range rates[len(bench.Limits.Rates):] {
			r.SetMissing(figures.StageChange(rate), fmt.Sprintf("not measured below %d Services", small))
		}
		b.report.AddResult(r)
		if err := b.report.Write(b.output); err != nil {
			return err
		}
	}
	return nil
}

// bench makes the API server hold a load of a size, the present one if it can
// grow to it and otherwise a new one, and waits until the machine is calm.
func (b *benchmark) bench(ctx context.Context, s figures.Size, affinity bool) (*trial.Bench, error) {
	if b.load == nil || !b.load.Fits(s) || b.load.Affinity != affinity {
		b.endCluster()
		if err := b.startCluster(ctx); err != nil {
			return nil, err
		}
		b.load.Affinity = affinity
	}
	if err := b.load.Grow(ctx, s); err != nil {
		return nil, err
	}
	return &trial.Bench{
		Cluster: b.cluster, Watcher: b.programs.watcher, Load: b.load, Limits: b.limits, Say: b.say,
	}, trial.Calm(ctx)
}

// startCluster starts a control plane without objects.
func (b *benchmark) startCluster(ctx context.Context) (err error) {
	b.clusters++
	dir := filepath.Join(b.dir, fmt.Sprintf("cluster-%d", b.clusters))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	b.say("starting etcd and kube-apiserver")
	b.cluster, err = testbed.Start(ctx, testbed.Settings{
		Etcd: b.programs.etcd, APIServer: b.programs.apiServer, Dir: dir, Bare: true,
	})
	if err != nil {
		return err
	}
	b.load, err = load.New(ctx, b.cluster.ControlPlane, b.say)
	return err
}

// endCluster ends the control plane, if there is one.
func (b *benchmark) endCluster() {
	if b.cluster == nil {
		return
	}
	if err := b.cluster.Close(); err != nil {
		b.say(err.Error()) // nothing depends on it
	}
	b.cluster, b.load = nil, nil
}

// runCounts prints what a change of the number of endpoints costs Sluice, seen
// from outside: at two sizes, and with session affinity.
func (b *benchmark) runCounts(ctx context.Context) error {
	const rate = 50
	b.peers = "sluice/nftables"
	if err := b.prepare(ctx); err != nil {
		return err
	}
	defer b.endCluster()
	fmt.Println("| Services | session affinity | updates | CPU per update | against the first |\n|--:|---|--:|--:|--:|")
	var first figures.Seconds
	for _, x := range []struct {
		services int
		affinity bool
	}{{500, false}, {8000, false}, {500, true}} {
		bench, err := b.bench(ctx, figures.Size{Services: x.services, Endpoints: 3}, x.affinity)
		if err != nil {
			return err
		}
		bench.ScaleRate = rate
		r := bench.Run(ctx, trial.Peer{Name: b.peers, Program: b.programs.proxies["sluice"], Mode: "nftables"})
		c := r.Change(rate)
		if c == nil {
			return fmt.Errorf("%d Services, affinity %v: %s", x.services, x.affinity, r.Why(figures.StageChange(rate)))
		}
		first = cmp.Or(first, c.PerUpdate())
		fmt.Printf("| %d | %v | %d | %v | %.2fx |\n", x.services, x.affinity, c.Updates, c.PerUpdate(), c.PerUpdate()/first)
	}
	return nil
}

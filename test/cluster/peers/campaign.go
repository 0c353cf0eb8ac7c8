package main

import (
	"context"
	"errors"
	"fmt"
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

// calm is how long the machine may take to come to rest between two peers.
const calm = 10 * time.Second

// campaign is one run of the program.
type campaign struct {
	options
	clock
	dir    string // for data and logs
	report *figures.Report

	programs programs
	clusters int // started so far
	cluster  *testbed.Cluster
	load     *load.Load
}

func (c *campaign) run(ctx context.Context) error {
	plan, err := c.plan()
	if err != nil {
		return err
	}
	if !c.fresh {
		if c.report, err = figures.Read(c.output); err != nil {
			return err
		}
	}
	if err := c.prepare(ctx); err != nil {
		return err
	}
	defer c.endCluster()
	for _, s := range plan {
		if err = c.measure(ctx, s); err != nil {
			break // what was found so far is worth a page
		}
	}
	if err := errors.Join(err, c.options.write(c.report, c.output)); err != nil {
		return err
	}
	page, err := render.Markdown(c.report)
	if err != nil {
		return err
	}
	fmt.Print(page)
	c.say(fmt.Sprintf("done; figures, table and pictures are in %s", filepath.Dir(c.output)))
	return nil
}

// prepare builds all programs and notes what the figures are of.
func (c *campaign) prepare(ctx context.Context) error {
	dir, err := module()
	if err != nil {
		return err
	}
	if err := c.build(ctx, dir); err != nil {
		return err
	}
	m, err := c.machine(ctx, filepath.Join(dir, "..", ".."))
	if err != nil {
		return err
	}
	c.report.SetMachine(m)
	l := c.limits
	c.report.Settings = []figures.Setting{
		{Name: "wait for every Service to answer", Value: l.ColdStart.String()},
		{Name: "endpoints replaced at each rate, at most", Value: fmt.Sprint(l.Samples)},
		{Name: "replace no more after", Value: l.Budget.String()},
		{Name: "wait for none after", Value: l.Patience.String()},
		{Name: "watch an idle proxy for", Value: l.Idle.String()},
		{Name: "a burst of connections", Value: l.Burst.String()},
	}
	return nil
}

// step is the peers that are measured at one size.
type step struct {
	size  figures.Size
	peers []trial.Peer
}

// plan says what is measured, by size: a loaded API server serves all peers.
func (c *campaign) plan() ([]step, error) {
	modern, err := sizes(c.sizes)
	if err != nil {
		return nil, err
	}
	legacy, err := sizes(c.legacy)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(modern, legacy)
	slices.SortFunc(all, func(a, b figures.Size) int { return a.Services - b.Services })
	var out []step
	for _, s := range slices.Compact(all) {
		st := step{size: s}
		for _, name := range list(c.options.peers) {
			program, mode, ok := strings.Cut(name, "/")
			if !ok || !known(program) {
				return nil, fmt.Errorf("read peer %q: want program/mode, the program one of %s", name, strings.Join(names(), ", "))
			}
			in := modern
			if mode == "iptables" {
				in = legacy
			}
			if slices.Contains(in, s) {
				st.peers = append(st.peers, trial.Peer{Name: name, Program: program, Mode: mode})
			}
		}
		if len(st.peers) > 0 {
			out = append(out, st)
		}
	}
	return out, nil
}

// measure measures all peers of one size and keeps what was found after each.
func (c *campaign) measure(ctx context.Context, s step) error {
	if err := c.fill(ctx, s.size); err != nil {
		return err
	}
	b := &trial.Bench{Cluster: c.cluster, Watcher: c.programs.watcher, Load: c.load, Limits: c.limits, Say: c.say}
	if s.size.Services < small {
		b.Limits.Rates = c.limits.Rates[:1]
	}
	if err := trial.Calm(ctx, calm); err != nil {
		return err
	}
	c.report.AddFloor(b.Floor(ctx))
	for i, p := range s.peers {
		c.say(fmt.Sprintf("%s at %v (%d of %d)", p.Name, s.size, i+1, len(s.peers)))
		if err := trial.Calm(ctx, calm); err != nil {
			return err
		}
		p.Program = c.programs.paths[p.Program]
		r := b.Run(ctx, p)
		if err := ctx.Err(); err != nil {
			return errors.Join(errors.New("interrupted; figures of finished peers are kept"), err)
		}
		for _, rate := range c.limits.Rates[len(b.Limits.Rates):] {
			r.SetMissing(figures.StageChange(rate), fmt.Sprintf("not measured below %d Services", small))
		}
		c.report.AddResult(r)
		if err := c.report.Write(c.output); err != nil {
			return err
		}
	}
	return nil
}

// fill makes the API server hold a load of a size: the present one if it can
// grow to it, otherwise a new one.
func (c *campaign) fill(ctx context.Context, s figures.Size) error {
	if c.load != nil && c.load.Fits(s) {
		return c.load.Grow(ctx, s)
	}
	c.endCluster()
	if err := c.open(ctx); err != nil {
		return err
	}
	return c.load.Grow(ctx, s)
}

// open starts a control plane, unless there is one.
func (c *campaign) open(ctx context.Context) error {
	if c.load != nil {
		return nil
	}
	c.clusters++
	dir := filepath.Join(c.dir, fmt.Sprintf("cluster-%d", c.clusters))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	c.say("starting etcd and kube-apiserver")
	var err error
	c.cluster, err = testbed.Start(ctx, testbed.Settings{
		Etcd: c.programs.etcd, APIServer: c.programs.apiServer, Dir: dir, Bare: true,
	})
	if err != nil {
		return err
	}
	c.load, err = load.New(ctx, c.cluster.ControlPlane, c.say)
	return err
}

// endCluster ends the control plane, if there is one.
func (c *campaign) endCluster() {
	if c.cluster == nil {
		return
	}
	if err := c.cluster.Close(); err != nil {
		c.say(err.Error()) // nothing depends on it
	}
	c.cluster, c.load = nil, nil
}

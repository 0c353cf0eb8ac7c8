// Package trial measures one service proxy after the other from the outside: on
// a fresh node of its own, against one loaded API server, by what connections
// see and what the kernel says of the process. It also measures the floor, which
// is the same without a proxy.
//
// It trusts nothing that a proxy says of itself, and does not judge the figures.
// A proxy that fails costs its own figures only.
package trial

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/process"
	"sluice/test/cluster/testbed"
)

// Peer is a proxy in one of its modes.
type Peer struct {
	Name    string // program/mode
	Program string // its path; empty: the cluster's own proxy
	Mode    string

	KubeProxy bool // it is the real one
}

// Limits says how much effort goes into the figures.
type Limits struct {
	ColdStart time.Duration // a proxy may take this long until every Service answers
	Samples   int           // endpoints to replace at each rate
	Budget    time.Duration // no new one is replaced after this
	Patience  time.Duration // and none is waited for after this
	Idle      time.Duration // to watch a proxy that has nothing to do
	Burst     time.Duration // one burst of connections; there are many
	Rates     []int         // of other changes per second; 0 is idle
}

// Bench measures on one loaded API server.
type Bench struct {
	Cluster *testbed.Cluster
	Watcher string // path of this program, to start one that only watches
	Load    *load.Load
	Limits  Limits
	Say     func(line string)
	// ScaleRate: if not 0, only changes of the number of endpoints are measured, so many per second.
	ScaleRate int
	// Only are the stages to measure; none: all.
	Only []figures.Stage
}

// trial is one peer at one size.
type trial struct {
	*Bench
	peer     Peer
	site     *site
	proxy    *process.Process // nil: not started yet
	result   figures.Result
	unusable error // why nothing more can be measured
}

// stage is one of the things that are measured of a peer. Its function fills the
// result in and returns the figures in a few words, to show progress.
type stage struct {
	name   figures.Stage
	run    func(t *trial, ctx context.Context) (summary string, err error)
	always bool // also of a proxy that does not serve
}

// stages are all of them, in their order.
func (b *Bench) stages() []stage {
	out := []stage{{name: figures.StageColdStart, run: (*trial).coldStart}}
	if b.ScaleRate != 0 {
		return append(out, stage{name: figures.StageChange(b.ScaleRate), run: (*trial).scale})
	}
	for _, rate := range b.Limits.Rates {
		out = append(out, stage{name: figures.StageChange(rate), run: func(t *trial, ctx context.Context) (string, error) {
			return t.changes(ctx, rate)
		}})
	}
	out = append(out,
		stage{name: figures.StageIdle, run: (*trial).idle},
		stage{name: figures.StageMemory, run: (*trial).memory, always: true},
		stage{name: figures.StageDataPath, run: (*trial).dataPath},
		stage{name: figures.StageRestart, run: (*trial).restart},
	)
	return slices.DeleteFunc(out, func(s stage) bool { return len(b.Only) > 0 && !slices.Contains(b.Only, s.name) })
}

// Run measures a peer at the size of the load. What goes wrong is in the result.
func (b *Bench) Run(ctx context.Context, p Peer) figures.Result {
	began := time.Now()
	t := &trial{Bench: b, peer: p, result: figures.Result{Peer: p.Name, Size: b.Load.Size, Date: began.UTC().Truncate(time.Second)}}
	t.site, t.unusable = b.newSite(ctx)
	for _, s := range b.stages() {
		err := t.unusable
		if err == nil || s.always && t.proxy != nil && t.proxy.Ended() == nil {
			err = t.measure(ctx, s)
		}
		if err != nil {
			line, _, _ := strings.Cut(err.Error(), "\n") // without the last lines of a log
			t.result.SetMissing(s.name, line)
		}
		if s.name == figures.StageColdStart && t.unusable == nil {
			t.unusable = err
		}
	}
	t.kill()
	if t.site != nil {
		if err := t.site.close(ctx); err != nil {
			b.Say(fmt.Sprintf("%s: %v", p.Name, err))
		}
	}
	t.result.Took = figures.SecondsOf(time.Since(began))
	return t.result
}

// measure runs one stage, when the proxy has come to rest if there is one.
func (t *trial) measure(ctx context.Context, s stage) error {
	began := time.Now()
	err := ctx.Err()
	if t.proxy != nil && !s.always {
		err = t.proxy.Ended()
		if err == nil {
			err = t.proxy.Settle(ctx, 500*time.Millisecond, 20*time.Millisecond, 20*time.Second)
		}
	}
	var summary string
	if err == nil {
		summary, err = s.run(t, ctx)
	}
	if err != nil {
		summary = err.Error()
	}
	t.Say(fmt.Sprintf("%s %v: %s: %s (%.0f s)", t.peer.Name, t.Load.Size, s.name, summary, time.Since(began).Seconds()))
	return err
}

// kill ends the peer without a warning and notes the peak of the process or of
// any of its children, unless that of an earlier process is known.
func (t *trial) kill() {
	if t.proxy == nil {
		return
	}
	t.proxy.Kill()
	peak, err := t.proxy.LargestPeak()
	if m := t.result.Memory; err == nil && m != nil && m.Largest == 0 {
		m.Largest = max(figures.Bytes(peak), m.Peak)
	}
}

// start starts the peer on the site's node, waits until something has happened or
// the time of a start is over, and returns the CPU time until then.
func (t *trial) start(ctx context.Context, await func(ctx context.Context) error) (figures.Seconds, error) {
	var err error
	t.proxy, err = t.Cluster.StartProxy(t.site.node, testbed.Proxy{
		User: t.site.user, Program: t.peer.Program, KubeProxy: t.peer.KubeProxy, Mode: t.peer.Mode, Pods: load.ClusterCIDR,
		// The limit of tracked connections is the machine's and cannot be
		// changed from a network namespace.
		Args: []string{"--conntrack-max-per-core=0"},
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, t.Limits.ColdStart)
	defer cancel()
	if err := await(t.proxy.Context(ctx)); err != nil {
		return 0, err
	}
	cpu, err := t.proxy.CPU()
	return figures.SecondsOf(cpu), err
}

// observe runs f while others change, and returns what a process used meanwhile
// beside what f notes. It ends the churn.
func observe(p *process.Process, churn *load.Churn, f func(c *figures.Change) error) (c figures.Change, err error) {
	const warmUp = 2 * time.Second // others change before anything is measured
	defer func() { err = errors.Join(err, churn.Stop()) }()
	if c.Rate = churn.Rate; c.Rate > 0 {
		time.Sleep(warmUp)
	}
	before, err := p.CPU()
	if err != nil {
		return c, err
	}
	others, began := churn.Count(), time.Now()
	if err := f(&c); err != nil {
		return c, err
	}
	c.Window = figures.SecondsOf(time.Since(began))
	others = churn.Count() - others
	c.Updates, c.Achieved = others+len(c.Calls), float64(others)/float64(c.Window)
	after, err := p.CPU()
	c.CPU = figures.SecondsOf(after - before)
	return c, err
}

// pause is nothing to do, for a while.
func pause(d time.Duration) func(*figures.Change) error {
	return func(*figures.Change) error {
		time.Sleep(d)
		return nil
	}
}

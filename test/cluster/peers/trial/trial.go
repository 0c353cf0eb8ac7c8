// Package trial measures service proxies from the outside, one after the other: each on its own
// fresh node, with one loaded API server, by the results of connections and the kernel's accounting
// of the process. It also measures the floor, which is the same without a proxy.
//
// It relies on nothing that a proxy reports about itself, and does not judge the figures. If a
// proxy fails, only its own figures are missing.
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
	Program string // path; default: the cluster's own proxy
	Mode    string

	KubeProxy bool // Program is kube-proxy
}

// Limits bound the effort of the measurements.
type Limits struct {
	ColdStart time.Duration // until every Service answers
	Samples   int           // endpoints to replace at each rate, at most
	Budget    time.Duration // no endpoint is replaced after this time
	Patience  time.Duration // and none is waited for after this time
	Idle      time.Duration // how long to measure an idle proxy
	Burst     time.Duration // length of one burst of connections
	Rates     []int         // of other changes per second; 0 is idle
}

// Bench measures on one loaded API server.
type Bench struct {
	Cluster *testbed.Cluster
	Watcher string // path of this program, for its --watch process
	Load    *load.Load
	Limits  Limits
	Log     func(line string)
	// ScaleRate, if not 0, measures only changes of the number of endpoints, so many per second.
	ScaleRate int
	// Only are the stages to measure; empty means all.
	Only []figures.Stage
}

// trial is the measurement of one peer at one size.
type trial struct {
	*Bench
	peer     Peer
	site     *site
	proxy    *process.Process // nil before the first start
	result   figures.Result
	unusable error // why further stages are skipped
}

// stage is one measurement of a peer. Its function fills in the result and returns a summary for
// the log.
type stage struct {
	name   figures.Stage
	run    func(t *trial, ctx context.Context) (summary string, err error)
	always bool // run even if the proxy does not serve
}

// stages returns all stages in order.
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

// Run measures a peer at the size of the load. Failures are recorded in the result.
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
			b.Log(fmt.Sprintf("%s: %v", p.Name, err))
		}
	}
	t.result.Took = figures.SecondsOf(time.Since(began))
	return t.result
}

// measure runs one stage, after the proxy has become idle.
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
	t.Log(fmt.Sprintf("%s %v: %s: %s (%.0f s)", t.peer.Name, t.Load.Size, s.name, summary, time.Since(began).Seconds()))
	return err
}

// kill kills the peer and records the maximum memory of the process or any of its children, unless
// an earlier process has set it.
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

// start starts the peer on the site's node, calls await, with the timeout of a start, and returns
// the CPU time until then.
func (t *trial) start(ctx context.Context, await func(ctx context.Context) error) (figures.Seconds, error) {
	var err error
	t.proxy, err = t.Cluster.StartProxy(t.site.node, testbed.Proxy{
		User: t.site.user, Program: t.peer.Program, KubeProxy: t.peer.KubeProxy, Mode: t.peer.Mode, Pods: load.ClusterCIDR,
		// The conntrack limit belongs to the machine and cannot be changed from a network
		// namespace.
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

// observe calls f during churn, and adds the updates and the CPU time of the process to what f
// records. It stops the churn.
func observe(p *process.Process, churn *load.Churn, f func(c *figures.Change) error) (c figures.Change, err error) {
	const warmUp = 2 * time.Second // churn before the measurement starts
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

// sleep returns a function for observe that does nothing for a while.
func sleep(d time.Duration) func(*figures.Change) error {
	return func(*figures.Change) error {
		time.Sleep(d)
		return nil
	}
}

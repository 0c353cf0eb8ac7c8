package trial

import (
	"context"
	"errors"
	"fmt"
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
	Watcher string // path of the program that only watches; empty: its cost is not measured
	Load    *load.Load
	Limits  Limits
	Say     func(line string)
}

// trial is one peer at one size.
type trial struct {
	*Bench
	peer   Peer
	site   *site
	proxy  *process.Process
	result *figures.Result
}

// Run measures a peer at the size of the load. What goes wrong is in the
// result.
func (b *Bench) Run(ctx context.Context, p Peer) figures.Result {
	began := time.Now()
	r := figures.Result{Peer: p.Name, Size: b.Load.Size, Date: began.UTC().Truncate(time.Second)}
	t := &trial{Bench: b, peer: p, result: &r}
	site, err := b.newSite(ctx)
	if err != nil {
		t.giveUp(err.Error())
		return r
	}
	t.site = site
	t.stages(ctx)
	if t.proxy != nil {
		t.proxy.Kill()
		t.largest()
	}
	if err := site.close(ctx); err != nil {
		b.Say(fmt.Sprintf("%s: %v", p.Name, err))
	}
	r.Took = figures.SecondsOf(time.Since(began))
	return r
}

// stages runs all stages, each if those before it left a proxy that works.
func (t *trial) stages(ctx context.Context) {
	if !t.stage(ctx, figures.StageColdStart, t.coldStart) || t.result.ColdStart.EveryAnswered().More {
		why := fmt.Sprintf("not every Service answered within %v", t.Limits.ColdStart)
		if c := t.result.ColdStart; c == nil {
			why = t.result.Why(figures.StageColdStart)
		}
		t.keepMemory()
		t.giveUp(why)
		return
	}
	for _, rate := range t.Limits.Rates {
		t.stage(ctx, figures.StageChange(rate), func(ctx context.Context) error { return t.changes(ctx, rate) })
	}
	t.stage(ctx, figures.StageIdle, t.idle)
	t.stage(ctx, figures.StageMemory, func(context.Context) error { return t.memory() })
	t.stage(ctx, figures.StageDataPath, t.dataPath)
	t.stage(ctx, figures.StageRestart, t.restart)
}

// stage runs one stage and reports whether it succeeded.
func (t *trial) stage(ctx context.Context, s figures.Stage, run func(context.Context) error) bool {
	began := time.Now()
	err := ctx.Err()
	if err == nil && t.proxy != nil {
		err = t.proxy.Ended()
	}
	if err == nil {
		err = run(ctx)
	}
	if err != nil {
		t.result.SetMissing(s, firstLine(err))
		t.Say(fmt.Sprintf("%s %v: %s: %v", t.peer.Name, t.Load.Size, s, err))
		return false
	}
	t.Say(fmt.Sprintf("%s %v: %s: %s (%.0f s)", t.peer.Name, t.Load.Size, s, summary(t.result, s), time.Since(began).Seconds()))
	return true
}

// giveUp notes the same reason for all that is not there.
func (t *trial) giveUp(why string) {
	stages := []figures.Stage{
		figures.StageColdStart, figures.StageIdle, figures.StageMemory, figures.StageDataPath, figures.StageRestart,
	}
	for _, rate := range t.Limits.Rates {
		stages = append(stages, figures.StageChange(rate))
	}
	there := map[figures.Stage]bool{
		figures.StageColdStart: t.result.ColdStart != nil, figures.StageMemory: t.result.Memory != nil,
	}
	for _, s := range stages {
		if _, known := t.result.Missing[s]; !known && !there[s] {
			t.result.SetMissing(s, why)
		}
	}
}

// start starts the peer on the site's node.
func (t *trial) start() error {
	var err error
	t.proxy, err = t.Cluster.StartProxy(t.site.node, testbed.Proxy{
		User: t.site.user, Program: t.peer.Program, Mode: t.peer.Mode, Pods: load.ClusterCIDR,
		// The limit of tracked connections is the machine's and cannot be
		// changed from a network namespace.
		Args: []string{"--conntrack-max-per-core=0"},
	})
	return err
}

// alive returns a context that ends when the proxy does, or after a while.
func (t *trial) alive(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	watched, stop := context.WithCancelCause(ctx)
	p := t.proxy
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
				if err := p.Ended(); err != nil {
					stop(err)
					return
				}
			}
		}
	}()
	return watched, func() {
		stop(nil)
		cancel()
	}
}

// timeUp reports whether an error only says that a limit was reached.
func timeUp(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

package trial

import (
	"context"
	"fmt"
	"time"

	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/peers/traffic"
)

// targets are the Services of the load.
func (b *Bench) targets() []traffic.Target {
	out := make([]traffic.Target, b.Load.Size.Services)
	for i := range out {
		out[i] = load.Target(i)
	}
	return out
}

// coldStart starts the peer on a kernel without rules.
func (t *trial) coldStart(ctx context.Context) error {
	before, err := kernelMemory()
	if err != nil {
		return err
	}
	targets := append(t.targets(), load.Target(load.Probe), load.Target(load.Data))
	began := time.Now()
	if err := t.start(); err != nil {
		return err
	}
	alive, cancel := t.alive(ctx, t.Limits.ColdStart)
	defer cancel()
	answers, err := t.site.client.Await(alive, targets)
	if err != nil {
		return err
	}
	c := &figures.ColdStart{Every: figures.SecondsOf(time.Since(began)), Answered: answers.Count, Of: len(targets)}
	if !answers.First.IsZero() {
		c.First = figures.SecondsOf(answers.First.Sub(began))
	}
	if !answers.All.IsZero() {
		c.Every = figures.SecondsOf(answers.All.Sub(began))
	}
	cpu, err := t.proxy.CPU()
	if err != nil {
		return err
	}
	c.CPU = figures.SecondsOf(cpu)
	after, err := kernelMemory()
	if err != nil {
		return err
	}
	c.Kernel = after - before
	t.result.ColdStart = c
	return nil
}

// restart ends the peer without a word, changes something, and starts it again
// on what it has left, while connections are made all the time.
func (t *trial) restart(ctx context.Context) error {
	const watched = 64 // Services
	var targets []traffic.Target
	for i := range watched {
		targets = append(targets, load.Target(i*t.Load.Size.Services/watched))
	}
	m := t.site.client.Monitor(targets)
	took, err := t.startAgain(ctx)
	var cpu time.Duration
	if err == nil {
		cpu, err = t.proxy.CPU()
	}
	if err == nil {
		time.Sleep(time.Second) // for what the peer does after it has followed
	}
	m.Stop()
	if err != nil {
		return err
	}
	r := &figures.Restart{Followed: figures.SecondsOf(took), CPU: figures.SecondsOf(cpu), Asked: m.Asked, Failed: m.Failed}
	if m.Err != nil {
		r.Error = m.Err.Error()
	}
	t.result.Restart = r
	return nil
}

// startAgain returns the time from the new process's start until it has seen to
// the change that happened before.
func (t *trial) startAgain(ctx context.Context) (time.Duration, error) {
	t.proxy.Kill()
	t.largest()
	step, err := t.Load.Step(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := t.start(); err != nil {
		return 0, err
	}
	alive, cancel := t.alive(ctx, t.Limits.ColdStart)
	defer cancel()
	at, err := t.site.client.Follow(alive, load.Target(load.Probe).Addr, step.To)
	if timeUp(err) {
		return 0, fmt.Errorf("not within %v", t.Limits.ColdStart)
	}
	return at.Sub(began), err
}

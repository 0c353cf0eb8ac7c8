package trial

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sluice/test/cluster/peers/client"
	"sluice/test/cluster/peers/figures"
	"sluice/test/cluster/peers/load"
	"sluice/test/cluster/process"
)

// coldStart starts the peer on a kernel without rules.
func (t *trial) coldStart(ctx context.Context) (string, error) {
	before, err := kernelMemory()
	if err != nil {
		return "", err
	}
	targets := []client.Target{load.Target(load.Probe), load.Target(load.Data)}
	for i := range t.Load.Size.Services {
		targets = append(targets, load.Target(i))
	}
	began := time.Now()
	var answers client.Answers
	cpu, err := t.start(ctx, func(ctx context.Context) (err error) {
		answers, err = t.site.client.Await(ctx, targets)
		return err
	})
	if err != nil {
		return "", err
	}
	at := func(t time.Time) figures.Seconds {
		if t.IsZero() {
			return 0
		}
		return figures.SecondsOf(t.Sub(began))
	}
	c := &figures.ColdStart{First: at(answers.First), Most: at(answers.Most), Every: at(time.Now()), Answered: answers.Count, Of: len(targets)}
	if c.Answered < c.Of {
		t.unusable = fmt.Errorf("not every Service answered within %v", t.Limits.ColdStart)
	}
	after, err := kernelMemory()
	if err != nil {
		return "", err
	}
	c.CPU, c.Kernel = cpu, after-before
	t.result.ColdStart = c
	return fmt.Sprintf("first %v, most %v, every %v, CPU %v", c.FirstAnswered(), c.Most, c.EveryAnswered(), c.CPU), nil
}

// idle watches a proxy that has nothing to do.
func (t *trial) idle(ctx context.Context) (string, error) {
	c, err := observe(t.proxy, t.Load.Churn(ctx, 0), pause(t.Limits.Idle))
	if err != nil {
		return "", err
	}
	t.result.Idle = &figures.Idle{CPU: c.CPU, Window: c.Window}
	return fmt.Sprintf("%.1f %% of a processor", t.result.Idle.Percent()), nil
}

// memory reads what the proxy occupies now and occupied at most.
func (t *trial) memory(context.Context) (string, error) {
	m, err := t.proxy.Memory()
	if err != nil {
		return "", err
	}
	t.result.Memory = &figures.Memory{Steady: figures.Bytes(m.Resident), Peak: figures.Bytes(m.Peak)}
	return fmt.Sprintf("steady %v, peak %v", t.result.Memory.Steady, t.result.Memory.Peak), nil
}

// kernelMemory is what the kernel occupies for objects of its own. All of the
// machine counts, so the difference of two is an estimate.
func kernelMemory() (figures.Bytes, error) {
	sizes, err := process.Sizes("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the kernel's memory: %w", err)
	}
	// Slab without what can be taken back at once, which is mostly of files.
	return figures.Bytes(sizes["SUnreclaim"] + sizes["Percpu"] + sizes["VmallocUsed"]), nil
}

// restart ends the peer without a warning, changes something, and starts it
// again on what it has left, while connections are made all the time.
func (t *trial) restart(ctx context.Context) (string, error) {
	const watched = 64 // Services
	var targets []client.Target
	for i := range watched {
		targets = append(targets, load.Target(i*t.Load.Size.Services/watched))
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var n client.Count
	var monitor sync.WaitGroup
	monitor.Go(func() { n = t.site.client.Monitor(watching, targets) })
	r, err := t.startAgain(ctx)
	stop()
	monitor.Wait()
	if err != nil {
		return "", err
	}
	if r.Asked, r.Failed = n.Asked, n.Failed; n.Err != nil {
		r.Error = n.Err.Error()
	}
	t.result.Restart = r
	return fmt.Sprintf("followed after %v, CPU %v, %d of %d connections failed", r.Followed, r.CPU, r.Failed, r.Asked), nil
}

// startAgain measures the time from the new process's start until traffic
// follows the change that happened before.
func (t *trial) startAgain(ctx context.Context) (*figures.Restart, error) {
	t.kill()
	step, err := t.Load.Step(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	var at time.Time
	cpu, err := t.start(ctx, func(ctx context.Context) (err error) {
		at, err = t.site.client.Follow(ctx, load.Target(load.Probe).Addr, step.To)
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not within %v", t.Limits.ColdStart)
	}
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Second) // for what the peer does after it has followed
	return &figures.Restart{Followed: figures.SecondsOf(at.Sub(began)), CPU: cpu}, nil
}

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

// coldStart starts the peer on a node without rules.
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

// idle measures a proxy while nothing changes.
func (t *trial) idle(ctx context.Context) (string, error) {
	c, err := observe(t.proxy, t.Load.Churn(ctx, 0), sleep(t.Limits.Idle))
	if err != nil {
		return "", err
	}
	t.result.Idle = &figures.Idle{CPU: c.CPU, Window: c.Window}
	return fmt.Sprintf("%.1f %% of a processor", t.result.Idle.Percent()), nil
}

// memory reads the current and the maximum memory of the proxy.
func (t *trial) memory(context.Context) (string, error) {
	m, err := t.proxy.Memory()
	if err != nil {
		return "", err
	}
	t.result.Memory = &figures.Memory{Steady: figures.Bytes(m.Resident), Peak: figures.Bytes(m.Peak)}
	return fmt.Sprintf("steady %v, peak %v", t.result.Memory.Steady, t.result.Memory.Peak), nil
}

// kernelMemory returns the memory of kernel objects. It includes the whole machine, so a difference
// of two values is an estimate.
func kernelMemory() (figures.Bytes, error) {
	sizes, err := process.Sizes("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the kernel's memory: %w", err)
	}
	// Without reclaimable slab memory, which is mostly the file cache.
	return figures.Bytes(sizes["SUnreclaim"] + sizes["Percpu"] + sizes["VmallocUsed"]), nil
}

// restart kills the peer, makes a change, and starts it again with the rules it left, while
// connections are made continuously.
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

// startAgain measures the time from the start of the new process until traffic follows the change
// that was made before.
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
	time.Sleep(time.Second) // include the work that the peer does afterwards
	return &figures.Restart{Followed: figures.SecondsOf(at.Sub(began)), CPU: cpu}, nil
}

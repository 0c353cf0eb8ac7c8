package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/mode"
)

// way is how connections are made that are compared with each other.
type way struct {
	name      string
	settings  mode.Settings
	atSockets bool // programs see the sockets
	through   bool // the Service; else straight to its pod
	bed       *bed
}

const notTracked = "ebpf, not tracked"

var untracked = mode.Settings{EBPF: mode.EBPF{Untracked: []netip.Prefix{podRange}}}

// ways are compared with the first of them.
var ways = []way{
	{name: "direct"},
	{name: "ebpf", atSockets: true, through: true},
	{name: notTracked, settings: untracked, atSockets: true, through: true},
	{name: "ebpf, bytes counted", settings: mode.Settings{CountBytes: true}, atSockets: true, through: true},
	{name: "nftables", through: true},
	{name: "direct, in mode ebpf", atSockets: true},
	{name: "direct, not tracked", settings: untracked},
}

// cgroup returns that of the way's sockets.
func (w way) cgroup() string {
	if w.atSockets {
		return w.bed.cgroup
	}
	return ""
}

// times are how long one step took in each round.
type times []time.Duration

// tenth is what a step takes that nothing else disturbed.
func (t times) tenth() time.Duration {
	sorted := slices.Sorted(slices.Values(t))
	return sorted[len(sorted)/10]
}

// worker makes connections on a thread that stays where it is.
type worker struct {
	jobs chan job
	done chan result
}

type job struct {
	use use
	to  netip.Addr
	n   int
}

type result struct {
	each time.Duration
	err  error
}

func startWorker(n *traffic.Namespace) *worker {
	w := &worker{make(chan job), make(chan result)}
	go func() {
		err := n.Do(func() error {
			if err := pin(cpu); err != nil {
				return err
			}
			for j := range w.jobs {
				each, err := j.run()
				w.done <- result{each, err}
			}
			return nil
		})
		w.done <- result{err: err}
	}()
	return w
}

func (j job) run() (each time.Duration, err error) {
	step, end, err := j.use.begin(socketAddr(j.to, j.use.port))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	began := time.Now()
	for range j.n {
		if err := step(); err != nil {
			return 0, err
		}
	}
	return time.Since(began) / time.Duration(j.n), nil
}

func (w *worker) do(j job) (time.Duration, error) {
	w.jobs <- j
	r := <-w.done
	return r.each, r.err
}

// speed is how long steps took, by origin, use and way.
type speed [origins][]map[string]times

const origins = 2

var originNames = [origins]string{"pod", "node"}

// measureSpeed makes connections of all ways by turns.
func measureSpeed(ctx context.Context, all []way) (*speed, error) {
	var out speed
	for origin := range originNames {
		workers := make([]*worker, len(all))
		for i, w := range all {
			host := w.bed.node
			if origin == 0 {
				host = w.bed.clients[0]
			}
			workers[i] = startWorker(within(host, w.cgroup()))
		}
		for _, u := range uses {
			t, err := compare(ctx, u, all, workers)
			if err != nil {
				return nil, fmt.Errorf("%s from the %s: %w", u.name, originNames[origin], err)
			}
			out[origin] = append(out[origin], t)
		}
		for _, w := range workers {
			close(w.jobs)
			if r := <-w.done; r.err != nil {
				return nil, r.err
			}
		}
	}
	return &out, nil
}

// compare makes rounds of one use of sockets, all ways in each.
func compare(ctx context.Context, u use, all []way, workers []*worker) (map[string]times, error) {
	took := map[string]times{}
	for round := range *rounds / *series + 1 {
		for i := range all {
			i = (i + round) % len(all)
			w := all[i]
			j := job{u, w.bed.server, *steps}
			if w.through {
				j.to = w.bed.single
			}
			before := w.translated()
			each, err := workers[i].do(j)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			if round == 0 { // the first one learns who the pod is
				if err := w.warm(ctx, workers[i], j); err != nil {
					return nil, err
				}
				continue
			}
			if n := w.translated() - before; w.through && w.atSockets && n == 0 {
				return nil, fmt.Errorf("%s: nothing was translated at sockets", w.name)
			}
			took[w.name] = append(took[w.name], each)
		}
		for _, w := range all {
			if err := w.bed.node.FlushConntrack(); err != nil {
				return nil, err
			}
		}
	}
	return took, nil
}

// translated returns how often sockets of a way's node were.
func (w way) translated() int {
	if w.bed.translated == nil {
		return 0
	}
	return w.bed.translated()
}

// warm waits until sockets are translated.
func (w way) warm(ctx context.Context, by *worker, j job) error {
	if !w.atSockets || !w.through {
		return nil
	}
	j.n = 1
	for end := time.Now().Add(5 * time.Second); ctx.Err() == nil; <-time.After(time.Millisecond) {
		before := w.translated()
		if _, err := by.do(j); err != nil {
			return err
		}
		if w.translated() > before {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("sockets are not translated")
		}
	}
	return ctx.Err()
}

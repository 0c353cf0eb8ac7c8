package runner

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// log is when runs started, since the beginning of the test.
type log struct {
	begin time.Time
	runs  []time.Duration
	takes time.Duration
	fails func(n int) bool // whether the nth run fails, from 1
}

func (l *log) run(context.Context) error {
	l.runs = append(l.runs, time.Since(l.begin))
	if l.takes > 0 {
		time.Sleep(l.takes)
	}
	if l.fails != nil && l.fails(len(l.runs)) {
		return errors.New("no luck")
	}
	return nil
}

const ms = time.Millisecond

func TestLoop(t *testing.T) {
	retry := Settings{RetryMin: 100 * ms, RetryMax: time.Second}
	with := func(change func(*Settings)) Settings {
		s := retry
		change(&s)
		return s
	}
	firstN := func(n int) func(int) bool { return func(i int) bool { return i <= n } }
	tests := []struct {
		name     string
		settings Settings
		takes    time.Duration
		fails    func(int) bool
		ask      []time.Duration
		until    time.Duration
		want     []time.Duration
	}{{
		name:     "nobody asks",
		settings: retry,
		until:    time.Hour,
	}, {
		name:     "idle and asked runs at once",
		settings: with(func(s *Settings) { s.MinInterval = time.Second }),
		ask:      []time.Duration{5 * ms, 3 * time.Second},
		until:    time.Minute,
		want:     []time.Duration{5 * ms, 3 * time.Second},
	}, {
		name:     "many requests are one run",
		settings: with(func(s *Settings) { s.MinInterval = time.Second }),
		ask:      []time.Duration{0, 10 * ms, 20 * ms, 30 * ms, 999 * ms},
		until:    time.Minute,
		want:     []time.Duration{0, time.Second},
	}, {
		name:     "spacing is from the end to the start",
		settings: with(func(s *Settings) { s.MinInterval = time.Second }),
		takes:    400 * ms,
		ask:      []time.Duration{0, 10 * ms, 1500 * ms},
		until:    time.Minute,
		want:     []time.Duration{0, 1400 * ms, 2800 * ms},
	}, {
		name:     "without spacing the next follows the last",
		settings: retry,
		takes:    9 * ms,
		ask:      []time.Duration{0, 1 * ms, 2 * ms},
		until:    time.Minute,
		want:     []time.Duration{0, 9 * ms},
	}, {
		name:     "after a run of some length there is a pause five times as long",
		settings: retry,
		takes:    20 * ms,
		ask:      []time.Duration{0, 10 * ms, 20 * ms},
		until:    time.Minute,
		want:     []time.Duration{0, 120 * ms},
	}, {
		name:     "but no longer than 150 ms",
		settings: retry,
		takes:    60 * ms,
		ask:      []time.Duration{0, 10 * ms, 20 * ms},
		until:    time.Minute,
		want:     []time.Duration{0, 210 * ms},
	}, {
		name:     "after a long run there is a pause as long",
		settings: retry,
		takes:    400 * ms,
		ask:      []time.Duration{0, 10 * ms, 20 * ms},
		until:    time.Minute,
		want:     []time.Duration{0, 800 * ms},
	}, {
		name:     "but not longer than a second",
		settings: retry,
		takes:    20 * time.Second,
		ask:      []time.Duration{0, 10 * ms, 20 * ms},
		until:    time.Minute,
		want:     []time.Duration{0, 21 * time.Second},
	}, {
		name:     "a run that nobody asked for",
		settings: with(func(s *Settings) { s.MaxInterval = 10 * time.Second }),
		takes:    time.Second,
		ask:      []time.Duration{3 * time.Second},
		until:    30 * time.Second,
		want:     []time.Duration{3 * time.Second, 14 * time.Second, 25 * time.Second},
	}, {
		name:     "quick retry, then growing waits up to the limit, then none",
		settings: retry,
		fails:    firstN(6),
		ask:      []time.Duration{0},
		until:    time.Hour,
		want:     []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 1500 * ms, 2500 * ms, 3500 * ms},
	}, {
		name:     "a retry keeps the minimum spacing",
		settings: with(func(s *Settings) { s.MinInterval = 250 * ms }),
		fails:    firstN(2),
		ask:      []time.Duration{0},
		until:    time.Hour,
		want:     []time.Duration{0, 250 * ms, 500 * ms},
	}, {
		name:     "a request during the wait runs at once and leaves the retry where it was",
		settings: retry,
		fails:    firstN(4),
		ask:      []time.Duration{0, 150 * ms, 350 * ms},
		until:    time.Hour,
		want:     []time.Duration{0, 100 * ms, 150 * ms, 300 * ms, 350 * ms},
	}, {
		name:     "a request that succeeds ends the series",
		settings: retry,
		fails:    func(n int) bool { return n <= 2 || n == 4 },
		ask:      []time.Duration{0, 150 * ms, time.Second},
		until:    time.Hour,
		want:     []time.Duration{0, 100 * ms, 150 * ms, time.Second, 1100 * ms},
	}, {
		name:     "the periodic run waits for the retries",
		settings: with(func(s *Settings) { s.MaxInterval = 200 * ms }),
		fails:    firstN(3),
		ask:      []time.Duration{0},
		until:    1000 * ms,
		want:     []time.Duration{0, 100 * ms, 300 * ms, 700 * ms, 900 * ms},
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				l := &log{begin: time.Now(), takes: tt.takes, fails: tt.fails}
				r := New("test", l.run, tt.settings)
				done := make(chan error, 1)
				go func() { done <- r.Loop(ctx) }()
				for _, at := range tt.ask {
					time.Sleep(at - time.Since(l.begin))
					r.Run()
				}
				time.Sleep(tt.until - time.Since(l.begin))
				synctest.Wait()
				stop()
				if err := <-done; err != nil {
					t.Errorf("Loop: %v", err)
				}
				if diff := cmp.Diff(tt.want, l.runs); diff != "" {
					t.Errorf("starts mismatch (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestRequestBeforeLoopIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{begin: time.Now()}
		r := New("test", l.run, Settings{RetryMin: ms, RetryMax: ms})
		r.Run()
		go func() { _ = r.Loop(t.Context()) }()
		synctest.Wait()
		if len(l.runs) != 1 {
			t.Errorf("%d runs, want 1", len(l.runs))
		}
	})
}

func TestFailedGetsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{begin: time.Now(), fails: func(n int) bool { return n <= 3 }}
		var waits []time.Duration
		r := New("test", l.run, Settings{
			RetryMin: 100 * ms, RetryMax: time.Second,
			Failed: func(_ context.Context, err error, retryIn time.Duration) {
				if err == nil || err.Error() != "no luck" {
					t.Errorf("told of error %v", err)
				}
				waits = append(waits, retryIn)
			},
		})
		go func() { _ = r.Loop(t.Context()) }()
		r.Run()
		time.Sleep(120 * ms)
		r.Run() // Fails in the wait of 200 ms, of which 180 are left.
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]time.Duration{100 * ms, 200 * ms, 180 * ms}, waits); diff != "" {
			t.Errorf("waits mismatch (-want +got):\n%s", diff)
		}
	})
}

func TestLoopEndsAfterTheRunningRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ended := false
		r := New("test", func(context.Context) error {
			time.Sleep(time.Second)
			ended = true
			return errors.New("stopped half way")
		}, Settings{RetryMin: ms, RetryMax: ms, Failed: func(context.Context, error, time.Duration) {
			t.Error("a run that was stopped is no failure")
		}})
		done := make(chan error, 1)
		go func() { done <- r.Loop(ctx) }()
		r.Run()
		synctest.Wait()
		stop()
		if err := <-done; err != nil {
			t.Errorf("Loop: %v", err)
		}
		if !ended {
			t.Error("Loop returned before the run had ended")
		}
	})
}

func TestLoopEndsWhileSpacing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		begin := time.Now()
		l := &log{begin: begin}
		r := New("test", l.run, Settings{MinInterval: time.Hour, RetryMin: ms, RetryMax: ms})
		done := make(chan error, 1)
		go func() { done <- r.Loop(ctx) }()
		r.Run()
		synctest.Wait()
		stop()
		<-done
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("Loop took %v to end", waited)
		}
	})
}

func TestLoopRejectsInvalidRetryTimes(t *testing.T) {
	for _, s := range []Settings{{}, {RetryMin: time.Second, RetryMax: ms}} {
		if err := New("test", nil, s).Loop(t.Context()); err == nil {
			t.Errorf("Loop accepted %+v", s)
		}
	}
}

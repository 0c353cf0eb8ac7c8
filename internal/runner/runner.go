package runner

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A run of at least longRun is followed by a pause of pauseRatio times its length,
// so that a stream of requests takes a sixth of a core. Requests have to wait for
// the pause, so it is limited: to longPause or the length of the run, whichever is
// longer, and in any case to maxPause.
const (
	longRun    = 10 * time.Millisecond
	pauseRatio = 5
	longPause  = 150 * time.Millisecond
	maxPause   = time.Second
)

// Settings are the bounds of a [BoundedFrequencyRunner].
type Settings struct {
	MinInterval time.Duration // minimum time from the end of one run to the start of the next
	MaxInterval time.Duration // time from the end of one run to the next if there is no request; 0: wait for a request
	RetryMin    time.Duration // time from the first failure to the first retry
	RetryMax    time.Duration // the time doubles with each failed retry, up to this

	// Failed is called after each run that failed, with the time until the retry. It may be nil.
	Failed func(ctx context.Context, err error, retryIn time.Duration)
}

// BoundedFrequencyRunner runs one function, one run at a time. One run serves all
// requests that were made since the last run started.
type BoundedFrequencyRunner struct {
	name    string
	fn      func(context.Context) error
	s       atomic.Pointer[Settings]
	request chan struct{} // has an element if there is a request that no run has served
}

// New returns a runner that does nothing until Loop is called. It keeps requests
// made before that.
func New(name string, fn func(context.Context) error, s Settings) *BoundedFrequencyRunner {
	r := &BoundedFrequencyRunner{name: name, fn: fn, request: make(chan struct{}, 1)}
	r.s.Store(&s)
	return r
}

// Run requests a run, and returns at once. A run that starts after the call serves
// the request; the current one does not.
func (r *BoundedFrequencyRunner) Run() {
	select {
	case r.request <- struct{}{}:
	default: // the run that serves the pending request starts after this call
	}
}

// SetIntervals changes MinInterval and MaxInterval from the next run on.
func (r *BoundedFrequencyRunner) SetIntervals(minimum, maximum time.Duration) {
	s := *r.s.Load()
	s.MinInterval, s.MaxInterval = minimum, maximum
	r.s.Store(&s)
}

// Loop runs the function according to the settings until ctx ends and the current
// run has returned; then it returns nil. It must be called only once.
//
// A failed run is retried after RetryMin, and then with exponential back-off. A
// request in between is served without waiting for the retry. If that run fails,
// too, the time of the retry does not change; if it succeeds, there is none.
func (r *BoundedFrequencyRunner) Loop(ctx context.Context) error {
	s := r.s.Load()
	if s.RetryMin <= 0 || s.RetryMax < s.RetryMin {
		return fmt.Errorf("run %s: invalid retry times: RetryMin %v, RetryMax %v", r.name, s.RetryMin, s.RetryMax)
	}
	var b backoff
	timer := newTimer(s.MaxInterval)
	for r.wait(ctx, timer) {
		started := time.Now()
		err := r.fn(ctx)
		took := time.Since(started)
		if ctx.Err() != nil {
			break
		}
		s = r.s.Load()
		next := s.MaxInterval
		if err == nil {
			b = backoff{}
		} else {
			next = b.failed(s)
			if s.Failed != nil {
				s.Failed(ctx, err, next)
			}
		}
		timer = newTimer(next)
		if pause := max(s.MinInterval, pauseAfter(took)); pause > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
	return nil
}

// wait blocks until it is time to run, and then returns true, or until ctx ends,
// and then returns false.
func (r *BoundedFrequencyRunner) wait(ctx context.Context, timer <-chan time.Time) bool {
	select {
	case <-ctx.Done():
	case <-r.request:
	case <-timer:
		// This run also serves a request that came at the same time.
		select {
		case <-r.request:
		default:
		}
	}
	return ctx.Err() == nil
}

// pauseAfter returns the pause that must follow a run of the given length.
func pauseAfter(took time.Duration) time.Duration {
	if took < longRun {
		return 0
	}
	return min(max(took, min(pauseRatio*took, longPause)), maxPause)
}

// newTimer returns a channel that fires after d, or never if d is 0.
func newTimer(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(d)
}

// backoff is the state of a series of failures. The zero value is the state before
// the first one.
type backoff struct {
	wait time.Duration // the last waiting time
	due  time.Time     // when it ends
}

// failed records a failure and returns how long to wait until the retry.
func (b *backoff) failed(s *Settings) time.Duration {
	now := time.Now()
	if left := b.due.Sub(now); left > 0 {
		return left // the run that failed was not the retry, which is still due
	}
	b.wait = Backoff(b.wait, s.RetryMin, s.RetryMax)
	b.due = now.Add(b.wait)
	return b.wait
}

// Backoff returns the waiting time after a failure, given the last one: twice as
// long, but at least minimum and at most maximum.
func Backoff(last, minimum, maximum time.Duration) time.Duration {
	return min(max(2*last, minimum), maximum)
}

package runner

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A run that takes long is followed by a rest, so that a stream of requests
// costs a sixth of a core. That is what a request waits for: beyond shortRest
// a run is followed by a rest of its own length only, and by none beyond maxRest.
const (
	long      = 10 * time.Millisecond
	restRatio = 5
	shortRest = 150 * time.Millisecond
	maxRest   = time.Second
)

// Settings are the bounds of a [BoundedFrequencyRunner].
type Settings struct {
	MinInterval time.Duration // from the end of one run to the start of the next, at least
	MaxInterval time.Duration // from the end of one run to the next one that nobody asked for; 0: never
	RetryMin    time.Duration // from a first failure to the first retry
	RetryMax    time.Duration // the wait doubles with each failed retry, up to this

	// Failed is told of each run that failed, and when the next try comes. It may be nil.
	Failed func(ctx context.Context, err error, retryIn time.Duration)
}

// BoundedFrequencyRunner runs one function, one run at a time. Any number of
// requests made while it cannot run are served by one run.
type BoundedFrequencyRunner struct {
	name  string
	fn    func(context.Context) error
	s     atomic.Pointer[Settings]
	asked chan struct{}
}

// New returns a runner that does nothing until Loop is called. Requests made
// before that are kept.
func New(name string, fn func(context.Context) error, s Settings) *BoundedFrequencyRunner {
	r := &BoundedFrequencyRunner{name: name, fn: fn, asked: make(chan struct{}, 1)}
	r.s.Store(&s)
	return r
}

// Run asks for a run and returns at once. A run that starts after the call
// serves it; one that is under way does not.
func (r *BoundedFrequencyRunner) Run() {
	select {
	case r.asked <- struct{}{}:
	default: // A request waits already, and will be served after this call.
	}
}

// SetIntervals changes MinInterval and MaxInterval from the next run on.
func (r *BoundedFrequencyRunner) SetIntervals(minimum, maximum time.Duration) {
	s := *r.s.Load()
	s.MinInterval, s.MaxInterval = minimum, maximum
	r.s.Store(&s)
}

// Loop runs the function as the settings say until ctx ends; then it returns
// nil, once the run that was under way has ended. It is called once.
//
// After a failure the first retry comes quickly and further ones with growing
// waits. A request in between runs at once. When that run fails too, it neither
// hurries nor delays the retry; when it succeeds, there is nothing to retry.
func (r *BoundedFrequencyRunner) Loop(ctx context.Context) error {
	s := r.s.Load()
	if s.RetryMin <= 0 || s.RetryMax < s.RetryMin {
		return fmt.Errorf("run %s: retry waits %v to %v make no sense", r.name, s.RetryMin, s.RetryMax)
	}
	var b retry
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
			b = retry{}
		} else {
			next = b.failed(s)
			if s.Failed != nil {
				s.Failed(ctx, err, next)
			}
		}
		timer = newTimer(next)
		if pause := max(s.MinInterval, rest(took)); pause > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
	return nil
}

// wait returns true when it is time to run, false when ctx has ended.
func (r *BoundedFrequencyRunner) wait(ctx context.Context, timer <-chan time.Time) bool {
	select {
	case <-ctx.Done():
	case <-r.asked:
	case <-timer:
		// This run serves a request that came at the same moment.
		select {
		case <-r.asked:
		default:
		}
	}
	return ctx.Err() == nil
}

// rest returns the distance that a run's length demands.
func rest(took time.Duration) time.Duration {
	if took < long {
		return 0
	}
	return min(max(took, min(restRatio*took, shortRest)), maxRest)
}

// newTimer returns a channel that never speaks when the wait is 0.
func newTimer(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(d)
}

// retry is where a series of failures stands. The zero value is before one.
type retry struct {
	wait time.Duration // the wait that was set last
	due  time.Time     // when it ends
}

// failed notes a failure now and returns how long to wait for the retry.
func (r *retry) failed(s *Settings) time.Duration {
	now := time.Now()
	if left := r.due.Sub(now); left > 0 {
		return left // The failed run was not the retry: that is still to come.
	}
	r.wait = Backoff(r.wait, s.RetryMin, s.RetryMax)
	r.due = now.Add(r.wait)
	return r.wait
}

// Backoff returns how long to wait after a failure that followed the last wait:
// twice as long, within bounds.
func Backoff(last, least, most time.Duration) time.Duration { return min(max(2*last, least), most) }

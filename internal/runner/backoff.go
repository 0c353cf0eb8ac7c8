package runner

import "time"

// Backoff is the waits after failures: each is twice the last, from Min to Max.
type Backoff struct {
	Min, Max time.Duration
	last     time.Duration
}

// Next returns how long to wait after another failure.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(2*b.last, b.Min), b.Max)
	return b.last
}

// Reset forgets the failures.
func (b *Backoff) Reset() { b.last = 0 }

package proxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Dataplane makes the kernel behave as a State says, for both families. Its
// methods are called by one goroutine at a time.
type Dataplane interface {
	// Sync makes the kernel right whatever was there before. Its cost is that
	// of the state, and it may list.
	Sync(ctx context.Context, s *State) error

	// Apply takes one step from a state that Sync or Apply has written. Its
	// cost is that of the delta, and it never lists.
	Apply(ctx context.Context, d *Delta) error

	// Close releases handles and leaves the rules: a restart drops nothing.
	Close() error
}

// Watcher is a Dataplane that notices when somebody else changes its rules.
type Watcher interface {
	// Watch calls changed, with what was seen, whenever the kernel's state may
	// have left ours, until ctx ends. When it has begun, and from then on sees
	// everything, it calls missed if something may have escaped it before.
	Watch(ctx context.Context, missed func(), changed func(what string)) error
}

// Leaver is a Dataplane whose rules would not give way by themselves to those
// of another proxy that comes after us.
type Leaver interface {
	// Leave prepares the rules for a time without us, in which they stay in
	// force unless another proxy comes. It is the last thing before Close.
	Leave(ctx context.Context) error
}

// ErrNothingApplied is wrapped by an error from Apply that left the kernel as
// it was: the same delta may be tried again. After any other error, but for a
// [RefusedError], only Sync is right.
var ErrNothingApplied = errors.New("nothing applied")

// RefusedError says that the kernel took everything but some rows. Those are
// as they were before the call: an upserted row still has its old form, a
// removed row is still there. After Sync they are absent.
type RefusedError struct {
	Rows map[PortKey]error
}

// Error names every refused row.
func (e *RefusedError) Error() string {
	keys := make([]PortKey, 0, len(e.Rows))
	for k := range e.Rows {
		keys = append(keys, k)
	}
	sortKeys(keys)
	var b strings.Builder
	for i, k := range keys {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%v: %v", k, e.Rows[k])
	}
	return b.String()
}

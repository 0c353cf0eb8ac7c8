package differ

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/internal/proxy"
)

// Mode describes a dataplane to a [Differ]. Only Write changes the kernel.
type Mode[ID comparable, V any] struct {
	// Constant renders the objects that do not depend on rows.
	Constant func(want *proxy.State, add func(ID, V))

	// Row renders the difference between two versions of a row: what cur no longer
	// needs and what it needs. One of them may be absent. An error refuses the row.
	Row func(old, cur Row, out *Changes[ID, V]) error

	// HealthCheck renders the objects that admit health checks of load balancers.
	// Nil if there are none.
	HealthCheck func(h *proxy.HealthCheck, add func(ID, V))

	// SameRows reports whether all rows render the same for both nodes. Nil if they
	// always do.
	SameRows func(a, b *proxy.Node) bool

	// Same reports whether two values are equal.
	Same func(a, b V) bool

	// Sharing returns whether several rows may want an object.
	Sharing func(ID) Sharing

	// Order returns when a change is written, in relation to all changes of this
	// step. Size returns its share of Limit.
	Order func(all *Changes[ID, V], c *Change[ID, V]) Order
	Size  func(*Change[ID, V]) int

	// Limit returns the size above which changes are written in several parts.
	Limit func() int

	// Live is the rank of the changes that put everything of a lower rank into
	// effect. If List returns empty, changes of a lower rank are written while rows are
	// still being rendered.
	Live int

	// List calls have for every object in the kernel. If it returns empty, none of
	// them is in force, and rest is not called. A rest that is not nil lists the
	// remaining objects; it is called after all rows have been rendered.
	List func(ctx context.Context, want *proxy.State, have func(ID, V)) (rest func() error, empty bool, err error)

	// Write makes some changes, all or none. The error is a [Refusal] if single
	// changes were refused. It wraps proxy.ErrNeedSync if it is not known which
	// changes were made; otherwise none was.
	Write func(ctx context.Context, some []*Change[ID, V]) error

	// Read calls have for those of some objects that the kernel has, and for objects
	// that it has in their place. It looks up each object by its key; it lists at
	// most what belongs to a single row.
	Read func(ctx context.Context, some []ID, have func(ID, V)) error

	// Difference describes an object that is not as wanted. Either value may be nil:
	// the object is not wanted, or the kernel does not have it.
	Difference func(id ID, want, have *V) proxy.Difference

	// Objects that linger are kept for at least IdleTime after the last row stopped
	// using them, and indefinitely while there are at most MaxIdle of them.
	MaxIdle  int
	IdleTime time.Duration
}

// Row is a row on a node. A nil ServicePort means that there is no row.
type Row struct {
	*proxy.ServicePort
	Node *proxy.Node
}

// Sharing is whether several rows may want an object, and what happens to it when
// no row does any longer.
type Sharing uint8

const (
	Unshared  Sharing = iota // at most one row wants it
	Shared                   // it is removed with the last row that wants it; its value follows from its ID
	Lingers                  // the same, but it is kept for a while; see Mode.MaxIdle
	Contested                // it is removed with the last row that wants it; rows may want different values, and the first row decides
)

// Refusal is the error of a Write of which nothing took effect because the kernel
// refused single changes.
type Refusal[ID comparable, V any] struct {
	Failures []Failure[ID, V]
}

// Failure is a change that was refused.
type Failure[ID comparable, V any] struct {
	Change *Change[ID, V]
	Err    error
	Drift  bool // the kernel's state is not as we left it; the row is not at fault
}

func (r *Refusal[ID, V]) Error() string {
	if n := len(r.Failures) - 1; n > 0 {
		return fmt.Sprintf("%v (and %d more)", r.Failures[0].Err, n)
	}
	return r.Failures[0].Err.Error()
}

func (r *Refusal[ID, V]) Unwrap() []error {
	var errs []error
	for _, f := range r.Failures {
		errs = append(errs, f.Err)
	}
	return errs
}

// addRefused adds the rows that caused a [Refusal] to refused. It returns false if
// the error is not a Refusal, if a failure cannot be attributed to a row, or if
// all the rows were refused before: then trying again without them does not help.
func (c *Changes[ID, V]) addRefused(err error, refused proxy.Refused) bool {
	r, ok := errors.AsType[*Refusal[ID, V]](err)
	if !ok {
		return false
	}
	found := map[proxy.PortKey]bool{}
	for _, f := range r.Failures {
		var rows []*proxy.PortKey
		if f.Change != nil {
			rows = c.owners(f.Change)
		}
		if len(rows) == 0 {
			return false
		}
		if found[*rows[0]] {
			continue // a consequence of the row's earlier failure
		}
		if f.Drift {
			return false
		}
		for _, row := range rows {
			if refused[*row] == nil {
				refused[*row], found[*row] = f.Err, true
			}
		}
	}
	return len(found) > 0
}

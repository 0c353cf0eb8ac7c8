package differ

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/internal/proxy"
)

// Mode is what a dataplane tells of itself. All but Write is free of effects on
// the kernel.
type Mode[ID comparable, V any] struct {
	// Constant renders what does not depend on rows.
	Constant func(want *proxy.State, add func(ID, V))

	// Row renders the difference between two forms of a row, either of which may
	// be nil: what it removes and adds. An error refuses the row.
	Row func(old, cur Row, out *Changes[ID, V]) error

	// HealthCheck renders what lets load balancers ask; nil: nothing does.
	HealthCheck func(h *proxy.HealthCheck, add func(ID, V))

	// SameRows reports whether rows render alike for two nodes; nil: always.
	SameRows func(a, b *proxy.Node) bool

	// Same reports whether two values are.
	Same func(a, b V) bool

	// Sharing says whether several rows may want an object.
	Sharing func(ID) Sharing

	// Order says when a change of all these is written, Size how much it is.
	Order func(all *Changes[ID, V], c *Change[ID, V]) Order
	Size  func(*Change[ID, V]) int

	// Limit is how much is written at once.
	Limit func() int

	// Live is the rank of what makes all that comes before take effect. When the
	// kernel has nothing, what is below it is written while rows are rendered.
	Live int

	// List gives every object that the kernel has. Empty says that none of them
	// is in force; then nothing more is asked for. Rest, if it is not nil, gives
	// the objects that are listed when rows have been rendered.
	List func(ctx context.Context, want *proxy.State, have func(ID, V)) (rest func() error, empty bool, err error)

	// Write makes some changes. An error is a [Refusal], or all or nothing
	// happened to them: proxy.ErrNeedSync if nobody knows which.
	Write func(ctx context.Context, some []*Change[ID, V]) error

	// Read gives what the kernel has of some objects, each asked for by its key, and
	// what it has in their place besides. It lists nothing but what is a row's.
	Read func(ctx context.Context, some []ID, have func(ID, V)) error

	// Difference tells what an object should be and is; nil: it is not there.
	Difference func(id ID, want, have *V) proxy.Difference

	// Objects that linger stay for IdleTime when no row wants them, and for
	// longer if there are no more than MaxIdle of them.
	MaxIdle  int
	IdleTime time.Duration
}

// Row is a row on a node; without a ServicePort there is none.
type Row struct {
	*proxy.ServicePort
	Node *proxy.Node
}

// Sharing says whether several rows may want an object, and what happens to it
// when the last one does no more.
type Sharing uint8

const (
	Unshared Sharing = iota
	Shared           // it goes with the last row
	Lingers          // it stays for a while
)

// Refusal says that the kernel took none of some changes because of single ones.
type Refusal[ID comparable, V any] struct {
	Failures []Failure[ID, V]
}

// Failure is a change that was refused.
type Failure[ID comparable, V any] struct {
	Change *Change[ID, V]
	Err    error
	Drift  bool // the kernel is not as it was left; no row is to blame
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

// blame adds the rows that are to blame for an error to the refused ones. It
// reports false if there is a failure that is no row's fault, or no new row.
func (c *Changes[ID, V]) blame(err error, refused proxy.Refused) bool {
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
			continue // a consequence of what failed before
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

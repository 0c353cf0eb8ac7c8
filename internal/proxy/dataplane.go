package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Dataplane makes the kernel behave as a State says, for both families. It is
// told what is wanted, never how to get there: each mode knows what it has
// written. Its methods are called by one goroutine at a time; the state is the
// caller's and valid during the call only, its rows never change.
type Dataplane interface {
	// Sync makes the kernel right whatever was there before. Its cost is that
	// of the state, and it may list.
	Sync(ctx context.Context, want *State) (Refused, error)

	// Apply brings what changed to what is wanted. Its cost is that of the
	// change, and it never lists. A row may come up that is neither wanted nor
	// in force: it was refused, and what there may be of it must go.
	Apply(ctx context.Context, want *State, changed *Changed) (Refused, error)

	// Close releases handles and leaves the rules: a restart drops nothing.
	Close() error
}

// Changed names what may not be as the wanted state has it, each once and in order.
type Changed struct {
	Rows         []PortKey
	HealthChecks []HealthCheckKey
	Node, CIDRs  bool
}

func (c *Changed) Empty() bool {
	return len(c.Rows) == 0 && len(c.HealthChecks) == 0 && !c.Node && !c.CIDRs
}

// Refused says which rows are not as wanted, and why. They stay dirty and are
// tried again later; everything else that was asked for is in force. A row that
// Sync refuses counts as absent, one that Apply refuses as being in its earlier
// form; a mode without transactions may have done half of it.
type Refused map[PortKey]error

// ErrNeedSync is wrapped by an error of Apply after which the kernel is not what
// the dataplane thinks: only Sync is right then. After any other error the same
// rows stay dirty, and Apply may be tried again. After an error of Sync only
// Sync is right.
var ErrNeedSync = errors.New("only a full sync is right")

// Comparer is a Dataplane that can say what a Sync found.
type Comparer interface {
	// Rewritten returns what the last Sync wrote although something of it was
	// there, or should have been; nothing if there was nothing at all.
	Rewritten() Rewritten
}

// Rewritten is what a Sync wrote.
type Rewritten struct {
	Objects int
	Rows    []PortKey // whose objects were among them, in order
}

// And adds what was written elsewhere.
func (r Rewritten) And(more Rewritten) Rewritten {
	rows := slices.SortedFunc(slices.Values(slices.Concat(r.Rows, more.Rows)), ComparePortKeys)
	return Rewritten{r.Objects + more.Objects, slices.Compact(rows)}
}

// Watcher is a Dataplane that notices when another process changes its rules.
type Watcher interface {
	// Watch calls changed, with what was seen, whenever the kernel's state may
	// have left ours, until ctx ends. When it has begun, and from then on sees
	// everything, it calls missed if something may have escaped it before.
	Watch(ctx context.Context, missed func(), changed func(what string)) error
}

// Verifier is a Dataplane of which the kernel does not announce all that another
// process changes, so that it has to be read back again and again.
type Verifier interface {
	// Verify reads back what a row has of that kind, as Inspect does, or with the
	// zero key what all rows stand on, and says what is not as it was written.
	Verify(ctx context.Context, row PortKey) ([]Difference, error)
}

// Runner is a Dataplane that has work of its own to do, next to what is written.
type Runner interface {
	// Run works until ctx ends, and then returns nil once all its goroutines
	// have. It begins before the first Sync. An earlier end ends the proxy.
	Run(ctx context.Context) error
}

// Inspector is a Dataplane that can say what the kernel has of a row.
type Inspector interface {
	// Inspect reads back what was written for a row that is in force, each object
	// by its key, and what is remembered of a client. It lists nothing.
	Inspect(ctx context.Context, what Inspection) (Inspected, error)
}

// Inspection is what is to be looked at.
type Inspection struct {
	Row    PortKey
	List   Scope      // of the row's lists, the one that the client takes
	Client netip.Addr // invalid: none
}

// Inspected is what was found.
type Inspected struct {
	Objects     int // that were read
	Differences []Difference
	Unread      string // what was not read; empty: nothing

	Remembered    netip.AddrPort // the endpoint that the client stays with; the zero value: none
	RememberedNot string         // why that is not known; empty: it is
}

// Add notes that so many objects more were read, and how some of them differ.
// Differences are kept in order.
func (i *Inspected) Add(objects int, differences ...Difference) {
	i.Objects += objects
	i.Differences = append(i.Differences, differences...)
	slices.SortStableFunc(i.Differences, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Want, b.Want), cmp.Compare(a.Have, b.Have))
	})
}

// Difference is an object that is not as it was written.
type Difference struct {
	Object     string
	Want, Have string // empty: it is not there
}

func (d Difference) String() string {
	switch {
	case d.Have == "":
		return fmt.Sprintf("%s is gone: %s", d.Object, d.Want)
	case d.Want == "":
		return fmt.Sprintf("%s is not ours: %s", d.Object, d.Have)
	default:
		return fmt.Sprintf("%s is %s, not %s", d.Object, d.Have, d.Want)
	}
}

// Measured is a Dataplane that counts something by itself.
type Measured interface {
	// Metrics returns what it counts.
	Metrics(ctx context.Context) []Metric

	// SyncFailed is told of each sync that failed; full: it was not an Apply.
	SyncFailed(full bool)
}

// Metric is something that a mode counts.
type Metric struct {
	Name, Help string
	Grows      bool // and never shrinks
	Labels     []string

	// Read yields the values now, each with one for every label. Any goroutine
	// may call it.
	Read func(yield func(value float64, labels ...string))
}

// Leaver is a Dataplane whose rules would not give way by themselves to those
// of another proxy that comes after us.
type Leaver interface {
	// Leave prepares the rules for a time without us, in which they stay in
	// force unless another proxy comes. It is the last thing before Close.
	Leave(ctx context.Context) error
}

// ErrInUse says that a clean-up left something because another process uses it.
// Trying again is in vain until they stop.
var ErrInUse = errors.New("in use by what is not kube-proxy's")

// ErrDraining says that a clean-up left something for as long as connections of
// the former mode are open. It is called again to see whether they have ended.
var ErrDraining = errors.New("connections are open")

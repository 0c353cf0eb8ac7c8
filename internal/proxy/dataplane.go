package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Dataplane makes the kernel behave as a State describes, for both families. Callers
// pass the wanted state; each mode remembers what it has written. Methods are called
// by one goroutine at a time. The state belongs to the caller and is valid during the
// call only; its rows never change and may be kept.
type Dataplane interface {
	// Sync brings the kernel to the wanted state, whatever was there before. Its
	// cost is O(state), and it may list objects of the kernel.
	Sync(ctx context.Context, want *State) (Refused, error)

	// Apply brings what changed to the wanted state. Its cost is O(changed), and
	// it never lists. It removes a row that is not in the wanted state; if the row
	// was refused before, the kernel may have only parts of it, or nothing.
	Apply(ctx context.Context, want *State, changed *Changed) (Refused, error)

	// Close releases handles. It leaves the rules in force, so that a restart does
	// not interrupt traffic.
	Close() error
}

// Changed names the parts of the wanted state that may not be in force. Rows and
// health checks are sorted, without duplicates.
type Changed struct {
	Rows         []PortKey
	HealthChecks []HealthCheckKey
	Node, CIDRs  bool
	Leftovers    bool // objects of no row that the kernel refused to remove; see Refused
}

func (c *Changed) Empty() bool {
	return len(c.Rows) == 0 && len(c.HealthChecks) == 0 && !c.Node && !c.CIDRs && !c.Leftovers
}

// Refused has the rows that the kernel or the mode refused, and why. They stay dirty
// and are retried later; everything else is in force. After Sync a refused row counts as
// absent, after Apply as being in force in its earlier version, unless the error is a
// PartialError. The zero key stands for objects that belong to no row and could not be
// removed; Apply tries again with Changed.Leftovers.
type Refused map[PortKey]error

// PartialError is the error of a refused row of which the kernel has, of the wanted
// version, what it did not refuse.
type PartialError struct{ Err error }

func (e *PartialError) Error() string { return e.Err.Error() }

func (e *PartialError) Unwrap() error { return e.Err }

// ErrNeedSync is wrapped by an error of Apply if the kernel is not in the state that
// the dataplane assumes, so that the caller must call Sync next. After any other
// error of Apply the caller may call Apply again with the same rows. After an error of
// Sync it must call Sync.
var ErrNeedSync = errors.New("a full sync is needed")

// Comparer is a Dataplane that reports what Sync had to correct.
type Comparer interface {
	// Rewritten returns what the last Sync wrote because the kernel's objects
	// differed from it or were missing. It returns nothing if the kernel had no
	// objects of ours at all.
	Rewritten() Rewritten
}

// Rewritten is what a Sync had to correct.
type Rewritten struct {
	Objects int       // how many objects were written
	Rows    []PortKey // the rows that they belong to, sorted
}

// And returns the sum of two corrections, of parts of one dataplane.
func (r Rewritten) And(more Rewritten) Rewritten {
	rows := slices.SortedFunc(slices.Values(slices.Concat(r.Rows, more.Rows)), ComparePortKeys)
	return Rewritten{r.Objects + more.Objects, slices.Compact(rows)}
}

// Watcher is a Dataplane that detects when another process changes its rules.
type Watcher interface {
	// Watch calls changed, with a description of what it saw, whenever another
	// process may have changed our objects in the kernel, until ctx ends. Once it
	// sees every change, it calls missed if earlier ones may have gone unseen. It also
	// calls missed if the mode needs a Sync for a reason of its own.
	Watch(ctx context.Context, missed func(), changed func(what string)) error
}

// Verifier is a Dataplane with objects whose changes the kernel does not announce,
// so that they have to be read back regularly.
type Verifier interface {
	// Verify reads back such objects of a row, or with the zero key those that all
	// rows share, and returns those that are not as written. It lists nothing.
	Verify(ctx context.Context, row PortKey) ([]Difference, error)
}

// Runner is a Dataplane that needs goroutines of its own.
type Runner interface {
	// Run works until ctx ends, and then returns nil once all its goroutines have
	// returned. It is called before the first Sync. If it returns earlier, the
	// proxy exits.
	Run(ctx context.Context) error
}

// Relayer is a Dataplane whose process carries connections itself.
type Relayer interface {
	// Relayed returns the connections from a client to an address that are relayed to
	// an endpoint.
	Relayed(ctx context.Context, p Protocol, from netip.Addr, to netip.AddrPort) ([]RelayedFlow, error)
}

// RelayedFlow is a connection that is relayed to an endpoint.
type RelayedFlow struct{ Client, Endpoint netip.AddrPort }

// Inspector is a Dataplane that can read back the objects of a row.
type Inspector interface {
	// Inspect reads back what was written for a row that is in force, each object
	// by its key, and the session affinity of a client. It lists nothing.
	Inspect(ctx context.Context, what Inspection) (Inspected, error)
}

// Inspection selects what Inspect reads.
type Inspection struct {
	Row    PortKey
	List   Scope      // the list of the row that the client's connections take
	Client netip.Addr // invalid if no client is asked about
}

// Inspected is the result of Inspect.
type Inspected struct {
	Objects     int // how many were read
	Differences []Difference
	Unread      string // what could not be read; empty if everything was

	Remembered        netip.AddrPort // the endpoint that session affinity binds the client to; the zero value if none
	RememberedUnknown string         // why Remembered is not known; empty if it is
}

// Add records that more objects were read, and which of them differ. It keeps
// Differences sorted.
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
	Want, Have string // empty if it should not exist, or does not
}

func (d Difference) String() string {
	switch {
	case d.Have == "":
		return fmt.Sprintf("%s is missing: %s", d.Object, d.Want)
	case d.Want == "":
		return fmt.Sprintf("%s is not ours: %s", d.Object, d.Have)
	default:
		return fmt.Sprintf("%s is %s, not %s", d.Object, d.Have, d.Want)
	}
}

// Measured is a Dataplane that has metrics of its own.
type Measured interface {
	// Metrics returns the mode's metrics.
	Metrics(ctx context.Context) []Metric

	// SyncFailed is called for each failed Sync (full) or Apply.
	SyncFailed(full bool)
}

// Metric is a metric of one mode.
type Metric struct {
	Name, Help string
	Grows      bool // it is a counter, not a gauge
	Labels     []string

	// Read yields the current values, each with a value for every label. Any
	// goroutine may call it.
	Read func(yield func(value float64, labels ...string))
}

// Leaver is a Dataplane whose rules would take precedence over those of another
// proxy that is started after this process has ended.
type Leaver interface {
	// Leave changes the rules so that they stay in force without this process, but
	// yield to another proxy if one starts. It is the last call before Close.
	Leave(ctx context.Context) error
}

// ErrInUse means that a clean-up left an object that another process uses. Retrying
// does not help while it does.
var ErrInUse = errors.New("in use by rules other than kube-proxy's")

// ErrDraining means that a clean-up left objects that open connections of the earlier
// mode need. The caller repeats the clean-up until the connections have ended.
var ErrDraining = errors.New("connections are open")

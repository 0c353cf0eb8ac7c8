package engine

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source"
)

// Provider is what ProxyServer runs and sources feed. It has one implementation.
type Provider interface {
	source.Handler

	// Sync asks for a sync soon.
	Sync()

	// SyncLoop runs until ctx ends, and then returns nil once the sync that was
	// under way has ended. It is called once.
	SyncLoop(ctx context.Context) error
}

// Observer is told what the engine does. It cannot fail a sync, and its methods
// return at once. Those with Seen in their name and Began are called under the
// engine's lock, so in the order in which a sync does or does not include an event.
type Observer interface {
	// Queued says that a sync was asked for. Any goroutine calls it.
	Queued()

	// ServiceSeen and EndpointSliceSeen take an event, with how many objects of
	// its kind now have changes that no sync has begun to put in force.
	ServiceSeen(pending int)
	EndpointSliceSeen(old, cur *discoveryv1.EndpointSlice, pending int)

	// NodeSeen takes this node's Node; nil: it is gone.
	NodeSeen(*v1.Node)

	// Repairing says that another process changed our rules and that a full sync
	// was asked for to mend them. Any goroutine calls it.
	Repairing()

	// Began says that a sync begins, with what it would change in the kernel.
	// Until one is done without an error, the kernel may do either.
	Began(step *proxy.Delta)

	// Done says that the sync has ended which began last.
	Done(ctx context.Context, r Result)
}

// Result is what a sync came to. Nothing of it may be changed.
type Result struct {
	Full  bool
	Err   error        // why all that was to be done stays to be done
	State *proxy.State // what is wanted, refused rows included; not to be kept

	// Changed is what changed in the kernel since the last sync without an error,
	// after the first one every row. A row that was refused is not in it.
	Changed *proxy.Delta

	// Found are the problems of objects that were not there before, and Problems
	// is how many there are.
	Found    []resolve.Problem
	Problems int

	// Refusals says that what the kernel refuses is not what it was.
	Refusals bool
}

type Settings struct {
	Dataplane     proxy.Dataplane
	Resolver      *resolve.Resolver // the engine's alone from now on
	MinSyncPeriod time.Duration     // from the end of one sync to the start of the next
	SyncPeriod    time.Duration     // from one full sync to the next, when nothing is amiss; 0: never
	Observer      Observer
}

const (
	// retryMin and retryMax bound the waits after a failed sync, and those
	// between two tries of a row that the kernel refuses.
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second

	// nodeWait is how long the first sync waits for the Node once Services and
	// EndpointSlices are there. Without the Node the primary NodePort addresses
	// and the zone are not known, and a restart would take NodePorts out of a
	// kernel that has them. But a missing right to read Nodes must not stop
	// ClusterIPs for ever.
	nodeWait = 30 * time.Second
)

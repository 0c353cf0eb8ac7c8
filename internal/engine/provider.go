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

// Provider is what the ProxyServer runs and sources feed. [Engine] implements it.
type Provider interface {
	source.Handler

	// Sync requests a sync.
	Sync()

	// SyncLoop runs until ctx ends, and returns nil once the sync in progress has ended.
	// It must be called once.
	SyncLoop(ctx context.Context) error
}

// Observer is notified of what the engine does. It cannot make a sync fail, and its
// methods must not block. The methods named ...Seen and Began are called under the
// engine's lock: an event is part of a sync if it is seen before the sync began.
type Observer interface {
	// Queued reports that a sync was requested. Any goroutine may call it.
	Queued()

	// ServiceSeen and EndpointSliceSeen report an event, and how many objects of
	// its kind now have changes that are part of no sync yet.
	ServiceSeen(pending int)
	EndpointSliceSeen(old, cur *discoveryv1.EndpointSlice, pending int)

	// NodeSeen reports an event of this node's Node, which is nil if it was deleted.
	NodeSeen(*v1.Node)

	// Repairing reports that another process changed our rules and that a full
	// sync was requested to repair them. Any goroutine may call it.
	Repairing()

	// Began reports that a sync begins, and what it will change in the kernel.
	// Until a sync has ended without an error, the kernel may be in the old or in
	// the new state.
	Began(step *proxy.Delta)

	// Done reports that the sync has ended that began last.
	Done(ctx context.Context, r Result)
}

// Result is the result of a sync. It is read-only.
type Result struct {
	Full  bool
	Err   error        // why the sync failed; everything it was to write stays dirty
	State *proxy.State // the wanted state, including refused rows; valid during the call only

	// Changed is what changed in the kernel since the last successful sync; after
	// the first one, every row. It does not have rows that were refused. It is nil
	// if the sync failed.
	Changed *proxy.Delta

	// Found are the problems with objects that are new since the last sync, and
	// Problems is how many there are in total.
	Found    []resolve.Problem
	Problems int

	// Refusals reports whether the set of refused rows, or a reason, changed.
	Refusals bool
}

type Settings struct {
	Dataplane     proxy.Dataplane
	Resolver      *resolve.Resolver // owned by the engine from now on
	MinSyncPeriod time.Duration     // from the end of one sync to the start of the next
	SyncPeriod    time.Duration     // between full syncs when nothing else requires one; 0 means never
	Observer      Observer
	Doubts        *Doubts // the list of all parts of the daemon; nil: an empty one
}

const (
	// retryMin and retryMax bound the back-off after a failed sync, and that of a
	// row that the kernel refuses.
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second

	// nodeWait is how long the first sync waits for the Node once all Services and
	// EndpointSlices have been delivered. Without the Node the zone and the primary
	// NodePort addresses are not known, so a restart would remove NodePorts that
	// work. But if the permission to read Nodes is missing, ClusterIPs must work
	// nevertheless.
	nodeWait = 30 * time.Second
)

package engine

import (
	"context"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source"
)

// Provider is what ProxyServer runs and sources feed. It has one implementation.
type Provider interface {
	source.ServiceHandler
	source.EndpointSliceHandler
	source.NodeHandler
	source.ServiceCIDRHandler

	// Sync asks for a sync soon.
	Sync()

	// SyncLoop runs until ctx ends, and then returns nil once the sync that was
	// under way has ended. It is called once.
	SyncLoop(ctx context.Context) error
}

// Observer is told what the kernel does, after it does it. It cannot fail a sync.
type Observer interface {
	// Applied is called after each success, by one goroutine. The delta is what
	// changed in the kernel since the last call; after the first sync, every
	// row. The state is what is wanted: a row that the kernel refused is in it,
	// but in no delta before it has gone through. Neither may be changed, and
	// the state not be kept.
	Applied(ctx context.Context, s *proxy.State, d *proxy.Delta)
}

// WriteObserver is an Observer that is told before the kernel does something, too.
type WriteObserver interface {
	// Applying is called before each write with what that changes, by the
	// goroutine that calls Applied: until then the kernel may do either. Nil takes
	// the last call back, for the kernel is as it was before.
	Applying(ctx context.Context, d *proxy.Delta)
}

// Pulse is told when syncs are asked for, begin and end. Its methods return at
// once. Began is called under the engine's lock, in order with the events that
// a [Register] is told of.
type Pulse interface {
	Queued()
	Began()
	Done(full bool, err error)
}

// Register is told of each event, with how many objects of its kind now have
// changes that no sync has begun to put in force.
type Register interface {
	ServiceSeen(pending int)
	EndpointSliceSeen(old, cur *discoveryv1.EndpointSlice, pending int)
}

// Settings are what an Engine is made of.
type Settings struct {
	Dataplane     proxy.Dataplane
	Resolver      *resolve.Resolver // the engine's alone from now on
	MinSyncPeriod time.Duration     // from the end of one sync to the start of the next
	SyncPeriod    time.Duration     // from one full sync to the next, when nothing is amiss; 0: never
	Observers     []Observer
	Pulses        []Pulse
	Register      Register // nil: nobody
}

// Status is how the engine stands.
type Status struct {
	Synced   bool      // the kernel has been made right at least once
	LastSync time.Time // when it was last known to be right; zero before the first time
	LastErr  error     // why it may not be now; nil after a success
	Refused  int       // rows that the kernel does not take
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

	// watchPause is how long a broken watch for foreign changes rests.
	watchPause = 10 * time.Second
)

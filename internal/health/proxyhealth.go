package health

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
)

// taintToBeDeleted is what the cluster autoscaler puts on a node that it is
// about to remove.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Counter counts the answers of the two paths. Metrics is one.
type Counter interface {
	Healthz(code int)
	Livez(code int)
}

// Settings are what ProxyHealth is made of.
type Settings struct {
	Families []proxy.Family // those that are served
	Timeout  time.Duration  // how long a requested sync may wait for its success
	Counter  Counter
}

// ProxyHealth knows whether the proxy does its work, and whether the node is to
// get traffic. A sync is one act for all families, so they are well or ill
// together. All methods may be called by any goroutine.
//
// Before the first successful sync the proxy is not healthy: until then nobody
// knows what the kernel does. As no sync comes before all objects are there, it
// is not healthy either while they cannot be read.
type ProxyHealth struct {
	families []proxy.Family
	counter  Counter

	mu       sync.Mutex
	timeout  time.Duration
	queued   time.Time // since when something waits that no sync has begun with; zero: nothing does
	taken    time.Time // since when something waits that a sync has begun with, and none has ended well; zero: nothing does
	updated  time.Time // the end of the last successful sync; zero: there was none
	eligible bool      // the node is to get traffic
}

// NewProxyHealth returns the health of a proxy that has done nothing yet, on a
// node that nobody knows.
func NewProxyHealth(s Settings) *ProxyHealth {
	return &ProxyHealth{families: s.Families, counter: s.Counter, timeout: s.Timeout}
}

// SetTimeout changes how long a requested sync may wait for its success.
func (h *ProxyHealth) SetTimeout(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timeout = d
}

// Queued says that a sync was asked for.
func (h *ProxyHealth) Queued() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queued.IsZero() {
		h.queued = time.Now()
	}
}

// Began says that a sync begins, for everything that was asked for before.
func (h *ProxyHealth) Began() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.taken.IsZero() {
		h.taken = h.queued
	}
	h.queued = time.Time{}
}

// Done says that the sync that began last has ended. After one that failed
// something waits, even if nobody asked for it.
func (h *ProxyHealth) Done(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		h.taken, h.updated = time.Time{}, now
	case h.taken.IsZero():
		h.taken = now
	}
}

// SyncNode takes what this node's Node says; nil: there is none.
func (h *ProxyHealth) SyncNode(n *v1.Node) {
	eligible := eligible(n)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = eligible
}

// eligible reports whether a node is to get traffic from load balancers.
func eligible(n *v1.Node) bool {
	if n == nil || n.DeletionTimestamp != nil {
		return false
	}
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Key == taintToBeDeleted {
			return false
		}
	}
	return true
}

// OnNodeAdd takes this node's Node.
func (h *ProxyHealth) OnNodeAdd(n *v1.Node) { h.SyncNode(n) }

// OnNodeUpdate takes this node's changed Node.
func (h *ProxyHealth) OnNodeUpdate(_, cur *v1.Node) { h.SyncNode(cur) }

// OnNodeDelete says that this node's Node is gone.
func (h *ProxyHealth) OnNodeDelete(*v1.Node) { h.SyncNode(nil) }

// OnNodeSynced changes nothing: a node is known when its Node has come.
func (h *ProxyHealth) OnNodeSynced() {}

// Healthy reports whether the kernel is what the API asks for, or may still be.
func (h *ProxyHealth) Healthy() bool { return h.report().healthy }

// report is how things stand at one moment.
type report struct {
	now      time.Time
	updated  time.Time
	known    bool // anything was ever asked for or done
	healthy  bool
	eligible bool
}

func (h *ProxyHealth) report() report {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	r := report{now: now, updated: h.updated, healthy: !h.updated.IsZero(), eligible: h.eligible}
	r.known = r.healthy || !h.queued.IsZero() || !h.taken.IsZero()
	for _, since := range [...]time.Time{h.queued, h.taken} {
		if !since.IsZero() && now.Sub(since) >= h.timeout {
			r.healthy = false
		}
	}
	return r
}

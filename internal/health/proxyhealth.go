package health

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
)

// taintToBeDeleted is the taint that the cluster autoscaler sets on a node which it is
// about to remove.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

type Settings struct {
	Families []proxy.Family // those that are served
	Timeout  time.Duration  // how long a requested sync may take until it has succeeded

	Healthz, Livez func(code int) // count the responses of the two paths
}

// ProxyHealth is whether the proxy keeps the kernel up to date, and whether the node
// should get traffic. A sync is for all families, so they are healthy or unhealthy
// together. It is safe for concurrent use.
//
// Before the first successful sync the proxy is not healthy, because it does not know
// what the kernel does. The first sync waits for all objects, so the proxy is not
// healthy either if they cannot be read.
type ProxyHealth struct {
	mu       sync.Mutex
	settings Settings
	queued   time.Time // when the oldest request was made that no sync has begun to handle; zero if there is none
	pending  time.Time // when the oldest request was made that a sync has begun to handle, but none has succeeded; zero if there is none
	updated  time.Time // when the last successful sync ended; zero if there was none
	eligible bool      // the node should get traffic
}

// NewProxyHealth returns the health of a proxy before its first sync, on a node that is
// not known yet.
func NewProxyHealth(s Settings) *ProxyHealth {
	return &ProxyHealth{settings: s}
}

func (h *ProxyHealth) SetTimeout(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settings.Timeout = d
}

// Queued records that a sync was requested.
func (h *ProxyHealth) Queued() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queued.IsZero() {
		h.queued = time.Now()
	}
}

// Began records that a sync begins, which handles all earlier requests.
func (h *ProxyHealth) Began() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pending.IsZero() {
		h.pending = h.queued
	}
	h.queued = time.Time{}
}

// Done records that the last sync has ended. A failed sync is pending until one
// succeeds, even if it was not requested.
func (h *ProxyHealth) Done(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		h.pending, h.updated = time.Time{}, now
	case h.pending.IsZero():
		h.pending = now
	}
}

// SyncNode sets this node's Node. Load balancers should not send traffic to a node that
// is about to be removed. Nil means that the Node was deleted: what it said last holds,
// because a Node is also deleted by mistake, and this process still serves.
func (h *ProxyHealth) SyncNode(n *v1.Node) {
	if n == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = n.DeletionTimestamp == nil &&
		!slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == taintToBeDeleted })
}

// Healthy reports whether the kernel is in the wanted state, or has not been out of
// date for longer than the timeout.
func (h *ProxyHealth) Healthy() bool {
	r, _ := h.response()
	return r.Healthy
}

// Eligible reports whether load balancers should send traffic to this node.
func (h *ProxyHealth) Eligible() bool {
	_, eligible := h.response()
	return eligible
}

// response is the body of a response.
type response struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyStatus `json:"status,omitempty"`
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler returns a handler for /healthz and /livez, with any method. /healthz is for
// load balancers: whether to send traffic to this node. /livez is for the kubelet:
// whether to leave the process running.
func (h *ProxyHealth) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		r, eligible := h.response()
		r.NodeEligible = &eligible
		h.settings.Healthz(r.write(w, r.Healthy && eligible))
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		r, _ := h.response()
		h.settings.Livez(r.write(w, r.Healthy))
	})
	return mux
}

func (h *ProxyHealth) response() (r response, eligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r = response{CurrentTime: time.Now(), LastUpdated: h.updated, Healthy: !h.updated.IsZero()}
	started := r.Healthy // a sync was requested or done
	for _, since := range [...]time.Time{h.queued, h.pending} {
		if !since.IsZero() {
			started = true
			r.Healthy = r.Healthy && r.CurrentTime.Sub(since) < h.settings.Timeout
		}
	}
	if started {
		r.Status = map[string]familyStatus{}
		for _, f := range h.settings.Families {
			r.Status[f.String()] = familyStatus{h.updated, r.Healthy}
		}
	}
	return r, h.eligible
}

// write writes the response and returns the status code. A healthy proxy is up to date
// now, however long ago the last change was.
func (r response) write(w http.ResponseWriter, ok bool) int {
	if ok {
		r.LastUpdated = r.CurrentTime
	}
	return writeJSON(w, ok, r, json.Marshal)
}

// writeJSON writes a value with status 200 or 503, which it returns.
func writeJSON(w http.ResponseWriter, ok bool, v any, marshal func(any) ([]byte, error)) int {
	code := http.StatusOK
	if !ok {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	text, _ := marshal(v) // The types of this package can always be marshalled.
	_, _ = w.Write(text)  // There is nothing to do about a client that is gone.
	return code
}

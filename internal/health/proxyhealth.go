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

// taintToBeDeleted is what the cluster autoscaler puts on a node that it is
// about to remove.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

type Settings struct {
	Families []proxy.Family // those that are served
	Timeout  time.Duration  // how long a requested sync may wait for its success

	Healthz, Livez func(code int) // count the answers of the two paths
}

// ProxyHealth knows whether the proxy does its work, and whether the node is to
// get traffic. A sync is one act for all families, so they are well or ill
// together. All methods may be called by any goroutine.
//
// Before the first successful sync the proxy is not healthy: until then nobody
// knows what the kernel does. As no sync comes before all objects are there, it
// is not healthy either while they cannot be read.
type ProxyHealth struct {
	mu       sync.Mutex
	settings Settings
	queued   time.Time // since when something waits that no sync has begun with; zero: nothing does
	taken    time.Time // since when something waits that a sync has begun with, and none has ended well; zero: nothing does
	updated  time.Time // the end of the last successful sync; zero: there was none
	eligible bool      // the node is to get traffic
}

// NewProxyHealth returns the health of a proxy that has done nothing yet, on a
// node that nobody knows.
func NewProxyHealth(s Settings) *ProxyHealth {
	return &ProxyHealth{settings: s}
}

func (h *ProxyHealth) SetTimeout(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settings.Timeout = d
}

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

// SyncNode takes what this node's Node says; nil: there is none. A node that is
// about to go is not to get traffic from load balancers.
func (h *ProxyHealth) SyncNode(n *v1.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = n != nil && n.DeletionTimestamp == nil &&
		!slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == taintToBeDeleted })
}

// Healthy reports whether the kernel is what the API asks for, or may still be.
func (h *ProxyHealth) Healthy() bool {
	a, _ := h.answer()
	return a.Healthy
}

func (h *ProxyHealth) Eligible() bool {
	_, eligible := h.answer()
	return eligible
}

// answer is what a prober may read.
type answer struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyAnswer `json:"status,omitempty"`
}

type familyAnswer struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler answers /healthz and /livez, whatever the method, and knows no other
// path. /healthz tells a load balancer whether to send traffic here, /livez a
// kubelet whether to leave the process running.
func (h *ProxyHealth) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		a, eligible := h.answer()
		a.NodeEligible = &eligible
		h.settings.Healthz(a.send(w, a.Healthy && eligible))
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		a, _ := h.answer()
		h.settings.Livez(a.send(w, a.Healthy))
	})
	return mux
}

// answer returns how things stand now.
func (h *ProxyHealth) answer() (a answer, eligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a = answer{CurrentTime: time.Now(), LastUpdated: h.updated, Healthy: !h.updated.IsZero()}
	known := a.Healthy // something was asked for or done
	for _, since := range [...]time.Time{h.queued, h.taken} {
		if !since.IsZero() {
			known = true
			a.Healthy = a.Healthy && a.CurrentTime.Sub(since) < h.settings.Timeout
		}
	}
	if known {
		a.Status = map[string]familyAnswer{}
		for _, f := range h.settings.Families {
			a.Status[f.String()] = familyAnswer{h.updated, a.Healthy}
		}
	}
	return a, h.eligible
}

// send answers and returns the status. A healthy proxy is up to date now: that
// nothing has changed for long is no reason to say it was long ago.
func (a answer) send(w http.ResponseWriter, ok bool) int {
	if ok {
		a.LastUpdated = a.CurrentTime
	}
	return answerJSON(w, ok, a, json.Marshal)
}

// answerJSON answers 200 or 503, which it returns, with a value.
func answerJSON(w http.ResponseWriter, ok bool, v any, marshal func(any) ([]byte, error)) int {
	code := http.StatusOK
	if !ok {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	text, _ := marshal(v) // ours can always be marshalled
	_, _ = w.Write(text)  // a prober that went away has nothing to be told
	return code
}

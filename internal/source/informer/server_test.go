package informer_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"sluice/internal/apiclient"
)

const (
	servicesPath = "/api/v1/services"
	nodesPath    = "/api/v1/nodes"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	cidrsPath    = "/apis/networking.k8s.io/v1/servicecidrs"
)

// object is an API object as JSON has it.
type object = map[string]any

// server speaks as much of the list and watch protocol as an informer needs.
// It notes what it is asked for and ignores selectors.
type server struct {
	*httptest.Server

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]object // by path and name
	history  map[string][]event           // of what changed
	expired  map[string]int               // what came before that version is not known any more
	changed  chan struct{}                // closed with the next event
	refused  map[string]bool
	requests map[string][]url.Values
}

// event is what a watch tells.
type event struct {
	version int
	told    object
}

func newServer(t *testing.T) *server {
	s := newObjects()
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		s.Close()
	})
	return s
}

// newObjects returns a server that does not listen.
func newObjects() *server {
	s := &server{
		version: 1, objects: map[string]map[string]object{}, history: map[string][]event{}, expired: map[string]int{},
		changed: make(chan struct{}), refused: map[string]bool{}, requests: map[string][]url.Values{},
	}
	for _, path := range []string{servicesPath, nodesPath, slicesPath, cidrsPath} {
		s.objects[path] = map[string]object{}
	}
	return s
}

func (s *server) client(t *testing.T) rest.Interface {
	t.Helper()
	c, err := apiclient.New(&rest.Config{Host: s.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	path, query := r.URL.Path, r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	s.requests[path] = append(s.requests[path], query)
	if s.refused[path] || s.objects[path] == nil {
		s.mu.Unlock()
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(status(http.StatusForbidden, "Forbidden"))
		return
	}
	if query.Get("watch") != "true" {
		items := slices.Collect(maps.Values(s.objects[path]))
		list := object{"metadata": s.versionNow(), "items": items}
		s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	var first []object
	if query.Get("sendInitialEvents") == "true" {
		for _, o := range s.objects[path] {
			first = append(first, object{"type": "ADDED", "object": o})
		}
		mark := s.versionNow()
		mark["annotations"] = object{"k8s.io/initial-events-end": "true"}
		first = append(first, object{"type": "BOOKMARK", "object": typed(path, object{"metadata": mark})})
	}
	from := s.version
	if at, err := strconv.Atoi(query.Get("resourceVersion")); err == nil && first == nil {
		from = at
	}
	s.mu.Unlock()
	s.stream(w, r, first, from)
}

// stream writes events from a version on until the client goes, its time is over or
// some of them are not known any more.
func (s *server) stream(w http.ResponseWriter, r *http.Request, events []object, from int) {
	path, out := r.URL.Path, json.NewEncoder(w)
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	over := time.NewTimer(time.Duration(seconds) * time.Second)
	defer over.Stop()
	for {
		for _, e := range events {
			_ = out.Encode(e)
		}
		w.(http.Flusher).Flush()
		s.mu.Lock()
		events = nil
		changed, expired := s.changed, from < s.expired[path]
		for _, e := range s.history[path] {
			if e.version > from {
				events, from = append(events, e.told), e.version
			}
		}
		s.mu.Unlock()
		switch {
		case expired:
			_ = out.Encode(object{"type": "ERROR", "object": status(http.StatusGone, "Expired")})
			return
		case events != nil:
			continue
		}
		select {
		case <-r.Context().Done():
			return
		case <-over.C:
			return
		case <-changed:
		}
	}
}

func (s *server) versionNow() object { return object{"resourceVersion": strconv.Itoa(s.version)} }

func status(code int, reason string) object {
	return object{
		"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Failure",
		"message": fmt.Sprintf("the test server says %d", code), "reason": reason, "code": code,
	}
}

// put adds or replaces an object and tells the watchers.
func (s *server) put(path string, o object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := nameOf(o)
	what := "ADDED"
	if s.objects[path][name] != nil {
		what = "MODIFIED"
	}
	s.version++
	typed(path, o)["metadata"].(object)["resourceVersion"] = strconv.Itoa(s.version)
	s.objects[path][name] = o
	s.tell(path, object{"type": what, "object": o})
}

// remove deletes an object and tells the watchers.
func (s *server) remove(path, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o := maps.Clone(s.objects[path][name])
	meta := maps.Clone(o["metadata"].(object))
	meta["resourceVersion"] = strconv.Itoa(s.version)
	o["metadata"] = meta
	delete(s.objects[path], name)
	s.tell(path, object{"type": "DELETED", "object": o})
}

// bookmark sends the watchers the current version.
func (s *server) bookmark(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.tell(path, object{"type": "BOOKMARK", "object": typed(path, object{"metadata": s.versionNow()})})
}

// lose deletes an object behind the watchers' backs, and ends the watches in the way
// that makes a client list again.
func (s *server) lose(path, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	delete(s.objects[path], name)
	s.history[path], s.expired[path] = nil, s.version
	s.wake()
}

// refuse makes the server answer a path with Forbidden, or stops it doing so.
func (s *server) refuse(path string, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused[path] = yes
}

func (s *server) tell(path string, told object) {
	s.history[path] = append(s.history[path], event{s.version, told})
	s.wake()
}

func (s *server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) asked(path string) []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests[path])
}

// typed puts the kind into an object of a path.
func typed(path string, o object) object {
	o["apiVersion"], o["kind"] = "v1", "Service"
	switch path {
	case nodesPath:
		o["kind"] = "Node"
	case slicesPath:
		o["apiVersion"], o["kind"] = "discovery.k8s.io/v1", "EndpointSlice"
	case cidrsPath:
		o["apiVersion"], o["kind"] = "networking.k8s.io/v1", "ServiceCIDR"
	}
	return o
}

func nameOf(o object) string { return o["metadata"].(object)["name"].(string) }

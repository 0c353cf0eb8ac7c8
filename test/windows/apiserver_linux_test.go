package windows

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// TestAPIServer serves a cluster, by kube-proxy's own configuration file for Windows.
func TestAPIServer(t *testing.T) {
	n := newNode(t)
	api := &apiServer{objects: map[string]object{
		"/api/v1/nodes": parsed(t, `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}`),
		"/api/v1/services": parsed(t, `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
			"spec": {"clusterIP": "`+vip+`", "ports": [{"name": "http", "port": 80}]}}`),
		slicesPath: slice(t, remote),
	}}
	server := httptest.NewServer(api)
	defer server.Close()
	defer server.CloseClientConnections() // or Close waits for watches
	config := n.file("config.conf", `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {contentType: application/json}
healthzBindAddress: `+n.health+`
metricsBindAddress: none
winkernel: {networkName: `+pods+`, rootHnsEndpointName: cbr0}
`)
	d := n.start("--config", drive(config), "--master", server.URL, "--hostname-override=node-1", "--status-socket=")
	n.wait(d.Log, remote)
	api.put(slicesPath, slice(t, other))
	n.wait(d.Log, other)
	d.stop()
}

const slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"

// slice has one endpoint, on another node.
func slice(t *testing.T, endpoint string) object {
	return parsed(t, `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
		"ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": ["`+endpoint+`"], "nodeName": "node-2"}]}`)
}

// object is an API object as JSON has it.
type object = map[string]any

func parsed(t *testing.T, text string) (o object) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	o["metadata"].(object)["resourceVersion"] = "1"
	return o
}

// apiServer has at most one object of a kind, and lets it be watched.
type apiServer struct {
	mu       sync.Mutex
	objects  map[string]object // by path
	watchers map[string][]chan object
}

// put replaces an object.
func (s *apiServer) put(path string, o object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o["metadata"].(object)["resourceVersion"] = "2"
	s.objects[path] = o
	for _, w := range s.watchers[path] {
		w <- object{"type": "MODIFIED", "object": o}
	}
}

// ServeHTTP answers watches that begin with what there is, and nothing else.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, query := r.URL.Path, r.URL.Query()
	if query.Get("sendInitialEvents") != "true" {
		http.Error(w, "this is not for tests", http.StatusForbidden)
		return
	}
	events := make(chan object, 10)
	s.mu.Lock()
	kinds := map[string][2]string{
		"/api/v1/nodes": {"v1", "Node"}, "/api/v1/services": {"v1", "Service"}, slicesPath: {"discovery.k8s.io/v1", "EndpointSlice"},
		"/apis/networking.k8s.io/v1/servicecidrs": {"networking.k8s.io/v1", "ServiceCIDR"},
	}
	if o := s.objects[path]; o != nil {
		events <- object{"type": "ADDED", "object": o}
	}
	events <- object{"type": "BOOKMARK", "object": object{"apiVersion": kinds[path][0], "kind": kinds[path][1], "metadata": object{
		"resourceVersion": "1", "annotations": object{"k8s.io/initial-events-end": "true"},
	}}}
	if s.watchers == nil {
		s.watchers = map[string][]chan object{}
	}
	s.watchers[path] = append(s.watchers[path], events)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	for out := json.NewEncoder(w); ; {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			_ = out.Encode(e)
			w.(http.Flusher).Flush()
		}
	}
}

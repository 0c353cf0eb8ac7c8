package kubectl

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"sluice/internal/statusapi"
)

// TestLocalOnly checks that other hosts and methods that write are refused.
func TestLocalOnly(t *testing.T) {
	h := localOnly(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	for _, tt := range []struct {
		method, host string
		code         int
	}{
		{"GET", "127.0.0.1:8080", 200},
		{"HEAD", "localhost:8080", 200},
		{"GET", "LOCALHOST", 200},
		{"GET", "[::1]:8080", 200},
		{"GET", "evil.example:8080", 403},
		{"GET", "localhost.evil.example", 403},
		{"GET", "192.0.2.1:8080", 403},
		{"GET", "", 403},
		{"POST", "127.0.0.1:8080", 405},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(tt.method, "/", nil)
		r.Host = tt.host
		if h.ServeHTTP(w, r); w.Code != tt.code {
			t.Errorf("%s as %q: HTTP %d, want %d", tt.method, tt.host, w.Code, tt.code)
		}
	}
}

// TestIndex checks the list of nodes and the page of each node: requests reach the
// daemon as if it were the only one, and what comes from nodes is shown as text.
func TestIndex(t *testing.T) {
	a := newServer(t)
	a.nodes = []string{"n1", "n2"}
	a.add("n1", "p1", dials(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(statusapi.VersionHeader, statusapi.Version)
		if r.URL.Path == statusapi.NodePath {
			_, _ = w.Write([]byte(`{"name": "n1", "mode": "<b>"}`))
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Set-Cookie", "a=b")
		_, _ = w.Write([]byte("<script>at " + r.URL.String()))
	})))
	f := &flags{
		loading:         &clientcmd.ClientConfigLoadingRules{ExplicitPath: a.kubeconfig()},
		daemonNamespace: "kube-system", socket: statusapi.DefaultSocket, timeout: 30 * time.Second,
	}
	_, all, err := f.daemons(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		"/":                      {`<a href="nodes/n1/">n1</a>`, "&lt;b&gt;", `n2<td colspan="7">no answer: no pod of sluice on this node`},
		"/nodes/n1/":             {"<title>", "page.js"}, // our own, not the node's
		"/nodes/n1/v1/x?limit=1": {"at /v1/x?limit=1"},
		"/nodes/n2/":             {"node n2: no pod of sluice on this node"},
		"/nodes/n3/":             {"404"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = "localhost"
		index(all).ServeHTTP(w, r)
		if h := w.Header(); strings.Contains(path, "/v1/") && (h.Get("Content-Type") != "application/json" || h.Get("Set-Cookie") != "" || h.Get("X-Content-Type-Options") != "nosniff") {
			t.Errorf("%s: headers %v; want those of data", path, h)
		}
		if strings.HasSuffix(path, "/n1/") && strings.Contains(w.Body.String(), "at /") {
			t.Errorf("%s comes from the node: %s", path, w.Body)
		}
		for _, text := range want {
			if !strings.Contains(w.Body.String(), text) {
				t.Errorf("%s: HTTP %d, %s; want %q in it", path, w.Code, w.Body, text)
			}
		}
	}
}

package zpages

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func ask(h http.Handler, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestNegotiation checks that Accept headers are handled as kube-proxy 1.37 does.
func TestNegotiation(t *testing.T) {
	const text = "text/plain; charset=utf-8"
	const json = "application/json;g=config.k8s.io;v=v1beta1;as=Flagz"
	const yaml = "application/yaml;g=config.k8s.io;v=v1alpha1;as=Flagz"
	tests := []struct {
		accept, contentType string
		code                int
	}{
		{"", text, 200},
		{"*/*", text, 200},
		{"text/plain", text, 200},
		{"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", text, 200},
		{"application/json;as=Flagz;v=v1beta1;g=config.k8s.io", json, 200},
		{"application/yaml;as=Flagz;v=v1alpha1;g=config.k8s.io", yaml, 200},
		{"text/plain;q=0.1, application/json;as=Flagz;v=v1beta1;g=config.k8s.io", json, 200},
		{"application/json;as=Statusz;v=v1beta1;g=config.k8s.io, text/plain", text, 200},
		{"application/json", text, 406},
		{"application/json;as=Flagz;v=v2;g=config.k8s.io", text, 406},
		{"application/json;as=Statusz;v=v1beta1;g=config.k8s.io", text, 406},
		{"application/vnd.kubernetes.protobuf", text, 406},
		{";;,,=", text, 406},
	}
	for _, tt := range tests {
		w := ask(Flagz(map[string]string{"v": "2"}), tt.accept)
		if got := w.Header().Get("Content-Type"); w.Code != tt.code || got != tt.contentType {
			t.Errorf("%s: code %d, %s, want %d, %s", tt.accept, w.Code, got, tt.code, tt.contentType)
		}
		if old := strings.Contains(tt.accept, deprecated); old != (w.Header().Get("Warning") != "") {
			t.Errorf("%s: warning %q", tt.accept, w.Header().Get("Warning"))
		}
	}
}

func TestFlagz(t *testing.T) {
	h := Flagz(map[string]string{"v": "2", "config": "/x", "kubeconfig": ""})
	want := "\nkube-proxy flagz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\nconfig=/x\nkubeconfig=\nv=2\n"
	if diff := cmp.Diff(want, ask(h, "").Body.String()); diff != "" {
		t.Errorf("text mismatch (-want +got):\n%s", diff)
	}
	want = `{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"kube-proxy"},"flags":{"config":"/x","kubeconfig":"","v":"2"}}` + "\n"
	if diff := cmp.Diff(want, ask(h, "application/json;as=Flagz;v=v1beta1;g=config.k8s.io").Body.String()); diff != "" {
		t.Errorf("object mismatch (-want +got):\n%s", diff)
	}
}

func TestStatusz(t *testing.T) {
	started := time.Now().Add(-3661 * time.Second).UTC()
	h := Statusz(Status{
		Started: started, GoVersion: "go1.26", BinaryVersion: "v0.2.0", EmulationVersion: "1.37", Paths: []string{"/configz", "/flagz"},
	}, func() ([]SetAside, int) { return []SetAside{{"ns/web:http/TCP/IPv4", "file exists"}}, 3 })
	want := "\nkube-proxy statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\n" +
		"Started: " + started.Format(time.UnixDate) + `
Up: 1 hr 01 min 01 sec
Go version: go1.26
Binary version: v0.2.0
Emulation version: 1.37
Paths: /configz /flagz
Refused service ports: 3
  ns/web:http/TCP/IPv4: file exists
  and 2 more
`
	if diff := cmp.Diff(want, ask(h, "").Body.String()); diff != "" {
		t.Errorf("text mismatch (-want +got):\n%s", diff)
	}
	want = `apiVersion: config.k8s.io/v1alpha1
binaryVersion: v0.2.0
emulationVersion: "1.37"
goVersion: go1.26
kind: Statusz
metadata:
  name: kube-proxy
paths:
- /configz
- /flagz
setAsideServicePorts:
- reason: file exists
  servicePort: ns/web:http/TCP/IPv4
setAsideServicePortsTotal: 3
startTime: "` + started.Format(time.RFC3339) + `"
uptimeSeconds: 3661
`
	if diff := cmp.Diff(want, ask(h, "application/yaml;as=Statusz;v=v1alpha1;g=config.k8s.io").Body.String()); diff != "" {
		t.Errorf("object mismatch (-want +got):\n%s", diff)
	}
}

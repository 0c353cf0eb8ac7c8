package health

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// metricsHandler serves everything, with profiling or without.
func metricsHandler(profiling bool, verbosity *string) http.Handler {
	text := func(s string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) })
	}
	return MetricsHandler(MetricsSettings{
		Metrics:   text("the metrics"),
		Configz:   text("the configuration"),
		Mode:      "nftables",
		Profiling: profiling,
		SetVerbosity: func(s string) (string, error) {
			if s == "loud" {
				return "", errors.New("not a number")
			}
			*verbosity = s
			return "set to " + s, nil
		},
		More: map[string]http.Handler{"/statusz": text("the status")},
	})
}

func TestMetricsHandler(t *testing.T) {
	const plainText = "text/plain; charset=utf-8"
	tests := []struct {
		request     string // method, path and body
		code        int
		contentType string // "": not looked at
		body        string // "": not looked at
	}{
		{"GET /healthz", 200, plainText, "ok"},
		{"GET /healthz?exclude=ping", 200, plainText, "ok"},
		{"GET /healthz?verbose", 200, plainText, "[+]ping ok\nhealthz check passed\n"},
		{"GET /healthz?verbose=1", 200, plainText, "[+]ping ok\nhealthz check passed\n"},
		{"GET /healthz?verbose&exclude=ping", 200, plainText, "[+]ping excluded: ok\nhealthz check passed\n"},
		{"GET /healthz?verbose&exclude=other", 200, plainText, "[+]ping ok\nhealthz check passed\n"},
		{"GET /healthz/ping", 200, plainText, "ok"},
		{"GET /healthz/ping?verbose", 200, plainText, "ok"},
		{"GET /healthz/other", 404, "", ""},
		{"GET /metrics", 200, "", "the metrics"},
		{"GET /configz", 200, "", "the configuration"},
		{"GET /statusz", 200, "", "the status"},
		{"GET /proxyMode", 200, plainText, "nftables"},
		{"POST /proxyMode", 200, plainText, "nftables"},
		{"GET /", 404, "", ""},
		{"GET /livez", 404, "", ""},
		{"GET /debug/pprof/", 200, "text/html; charset=utf-8", ""},
		{"GET /debug/pprof", 302, "", ""},
		{"GET /debug/pprof/goroutine?debug=1", 200, plainText, ""},
		{"GET /debug/pprof/cmdline", 404, "", ""},
		{"GET /debug/pprof/nothing", 404, "", ""},
		{"GET /debug/pprof/symbol", 200, plainText, "num_symbols: 1\n"},
		{"GET /debug/flags", 200, plainText, "/debug/flags/v: PUT a number to set the verbosity of the log\n"},
		{"GET /debug/flags/", 200, plainText, ""},
		{"GET /debug/flags/w", 404, "", ""},
		{"PUT /debug/flags/v 7", 200, plainText, "set to 7"},
		{"PUT /debug/flags/v loud", 400, plainText, "set the verbosity to \"loud\": not a number\n"},
		{"PUT /debug/flags/v " + strings.Repeat("9", 1000), 400, plainText, ""},
		{"GET /debug/flags/v", 406, plainText, ""},
		{"POST /debug/flags/v 8", 406, plainText, ""},
	}
	for _, tt := range tests {
		t.Run(tt.request[:min(len(tt.request), 40)], func(t *testing.T) {
			var verbosity string
			h := metricsHandler(true, &verbosity)
			var method, path, body string
			_, _ = fmt.Sscan(tt.request, &method, &path, &body)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
			if w.Code != tt.code {
				t.Errorf("code %d; want %d", w.Code, tt.code)
			}
			if diff := cmp.Diff(tt.body, w.Body.String()); tt.body != "" && diff != "" {
				t.Errorf("body mismatch (-want +got):\n%s", diff)
			}
			if got := w.Header().Get("Content-Type"); tt.contentType != "" && got != tt.contentType {
				t.Errorf("content type %q; want %q", got, tt.contentType)
			}
			if tt.contentType == plainText && w.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("headers %v; want nosniff", w.Header())
			}
			if want := map[bool]string{true: "7"}[tt.body == "set to 7"]; verbosity != want {
				t.Errorf("verbosity %q; want %q", verbosity, want)
			}
		})
	}
}

func TestDebugOnlyWithProfiling(t *testing.T) {
	var verbosity string
	h := metricsHandler(false, &verbosity)
	for _, path := range []string{"/debug", "/debug/pprof", "/debug/pprof/", "/debug/pprof/heap", "/debug/flags", "/debug/flags/v"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPut, path, strings.NewReader("9")))
		if w.Code != 404 {
			t.Errorf("%s: code %d; want 404", path, w.Code)
		}
	}
	if verbosity != "" {
		t.Errorf("verbosity was set to %s", verbosity)
	}
}

// TestSLIs sees the pings, and none after a reset.
func TestSLIs(t *testing.T) {
	var verbosity string
	h := metricsHandler(false, &verbosity)
	ask := func(method, path string) string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != 200 {
			t.Errorf("%s %s: code %d", method, path, w.Code)
		}
		return w.Body.String()
	}
	ask(http.MethodDelete, "/metrics/slis")
	ask(http.MethodGet, "/healthz")
	ask(http.MethodGet, "/healthz/ping")
	const want = `kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 2`
	if got := ask(http.MethodGet, "/metrics/slis"); !strings.Contains(got, want) {
		t.Errorf("no %s in\n%s", want, got)
	}
	ask(http.MethodDelete, "/metrics/slis")
	if got := ask(http.MethodGet, "/metrics/slis"); strings.Contains(got, "kubernetes_healthchecks_total{") {
		t.Errorf("something is left after a reset:\n%s", got)
	}
}

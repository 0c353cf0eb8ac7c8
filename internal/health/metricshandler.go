package health

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"

	"k8s.io/component-base/metrics/prometheus/slis"
)

// maxVerbosityBody bounds the body of a request that sets the verbosity, in bytes. Any
// number fits.
const maxVerbosityBody = 64

type MetricsSettings struct {
	Metrics   http.Handler // /metrics
	Configz   http.Handler // /configz
	Mode      string       // /proxyMode
	Profiling bool         // serve /debug

	// SetVerbosity parses and sets the verbosity of the log, and returns the text of
	// the response.
	SetVerbosity func(string) (string, error)

	// More are handlers of additional paths.
	More map[string]http.Handler
}

// MetricsHandler returns the handler of the metrics server.
func MetricsHandler(s MetricsSettings) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", ping)
	mux.HandleFunc("/healthz/ping", ping)
	mux.Handle("/metrics", s.Metrics)
	slis.SLIMetricsWithReset{}.Install(mux)
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, s.Mode) })
	mux.Handle("/configz", s.Configz)
	if s.Profiling {
		handleDebug(mux, s.SetVerbosity)
	}
	for path, h := range s.More {
		mux.Handle(path, h)
	}
	return mux
}

// writeText writes plain text, with headers that keep browsers from taking it for
// anything else.
func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// ping reports that this server responds. The health of the proxy is served by another
// server.
func ping(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	excluded := slices.Contains(query["exclude"], "ping")
	if !excluded {
		_ = slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success)
	}
	switch {
	case r.URL.Path != "/healthz" || !query.Has("verbose"):
		writeText(w, http.StatusOK, "ok")
	case excluded:
		writeText(w, http.StatusOK, "[+]ping excluded: ok\nhealthz check passed\n")
	default:
		writeText(w, http.StatusOK, "[+]ping ok\nhealthz check passed\n")
	}
}

// handleDebug adds profiles and the verbosity of the log.
func handleDebug(mux *http.ServeMux, setVerbosity func(string) (string, error)) {
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	index := func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "/debug/flags/v: PUT a number to set the verbosity of the log\n")
	}
	mux.HandleFunc("/debug/flags", index)
	mux.HandleFunc("/debug/flags/{$}", index)
	mux.HandleFunc("/debug/flags/v", func(w http.ResponseWriter, r *http.Request) { putVerbosity(w, r, setVerbosity) })
}

func putVerbosity(w http.ResponseWriter, r *http.Request, set func(string) (string, error)) {
	if r.Method != http.MethodPut {
		writeText(w, http.StatusNotAcceptable, "only method PUT is supported, which sets the verbosity\n")
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxVerbosityBody))
	if err != nil {
		writeText(w, http.StatusBadRequest, fmt.Sprintf("read the verbosity: %v\n", err))
		return
	}
	response, err := set(string(text))
	if err != nil {
		writeText(w, http.StatusBadRequest, fmt.Sprintf("set the verbosity to %q: %v\n", text, err))
		return
	}
	writeText(w, http.StatusOK, response)
}

package health

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"

	"k8s.io/component-base/metrics/prometheus/slis"
)

// maxVerbosityText is more than any number that can be set.
const maxVerbosityText = 64

type MetricsSettings struct {
	Metrics   http.Handler // /metrics
	Configz   http.Handler // /configz
	Mode      string       // /proxyMode
	Profiling bool         // serve /debug

	// SetVerbosity sets the log's verbosity from text and says what it did.
	SetVerbosity func(string) (string, error)

	// More are further paths and who answers them.
	More map[string]http.Handler
}

// MetricsHandler answers all paths of the metrics server.
func MetricsHandler(s MetricsSettings) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", ping)
	mux.HandleFunc("/healthz/ping", ping)
	mux.Handle("/metrics", s.Metrics)
	slis.SLIMetricsWithReset{}.Install(mux)
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, s.Mode) })
	mux.Handle("/configz", s.Configz)
	if s.Profiling {
		debug(mux, s.SetVerbosity)
	}
	for path, h := range s.More {
		mux.Handle(path, h)
	}
	return mux
}

// plain answers with text that a browser takes for nothing else.
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// ping says that the server answers, which is all that its health is about. The
// proxy's own health has another server.
func ping(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	excluded := slices.Contains(query["exclude"], "ping")
	if !excluded {
		_ = slis.ObserveHealthcheck(r.Context(), "ping", "healthz", slis.Success)
	}
	switch {
	case r.URL.Path != "/healthz" || !query.Has("verbose"):
		plain(w, http.StatusOK, "ok")
	case excluded:
		plain(w, http.StatusOK, "[+]ping excluded: ok\nhealthz check passed\n")
	default:
		plain(w, http.StatusOK, "[+]ping ok\nhealthz check passed\n")
	}
}

// debug adds what a developer looks at.
func debug(mux *http.ServeMux, setVerbosity func(string) (string, error)) {
	mux.Handle("/debug/pprof", http.RedirectHandler("/debug/pprof/", http.StatusFound))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	index := func(w http.ResponseWriter, _ *http.Request) {
		plain(w, http.StatusOK, "/debug/flags/v: PUT a number to set the log's verbosity\n")
	}
	mux.HandleFunc("/debug/flags", index)
	mux.HandleFunc("/debug/flags/{$}", index)
	mux.HandleFunc("/debug/flags/v", func(w http.ResponseWriter, r *http.Request) { putVerbosity(w, r, setVerbosity) })
}

func putVerbosity(w http.ResponseWriter, r *http.Request, set func(string) (string, error)) {
	if r.Method != http.MethodPut {
		plain(w, http.StatusNotAcceptable, "only PUT sets the verbosity\n")
		return
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxVerbosityText))
	if err != nil {
		plain(w, http.StatusBadRequest, fmt.Sprintf("read the verbosity: %v\n", err))
		return
	}
	said, err := set(string(text))
	if err != nil {
		plain(w, http.StatusBadRequest, fmt.Sprintf("set the verbosity to %q: %v\n", text, err))
		return
	}
	plain(w, http.StatusOK, said)
}

package health

import (
	"net/http"
	"strconv"
	"time"
)

// Handler answers /healthz and /livez, whatever the method, and knows no other
// path.
func (h *ProxyHealth) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", h.healthz)
	mux.HandleFunc("/livez", h.livez)
	return mux
}

// healthz tells a load balancer whether to send traffic here.
func (h *ProxyHealth) healthz(w http.ResponseWriter, _ *http.Request) {
	r := h.report()
	code := status(r.healthy && r.eligible)
	h.counter.Healthz(code)
	h.answer(w, code, r, true)
}

// livez tells a kubelet whether to leave the process running.
func (h *ProxyHealth) livez(w http.ResponseWriter, _ *http.Request) {
	r := h.report()
	code := status(r.healthy)
	h.counter.Livez(code)
	h.answer(w, code, r, false)
}

func status(ok bool) int {
	if ok {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

func (h *ProxyHealth) answer(w http.ResponseWriter, code int, r report, node bool) {
	setJSON(w.Header())
	w.WriteHeader(code)
	// A prober that went away has nothing to be told.
	_, _ = w.Write(h.body(code, r, node))
}

func setJSON(header http.Header) {
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
}

// body returns the report on one line. What is well now was well until now.
func (h *ProxyHealth) body(code int, r report, node bool) []byte {
	last := r.updated
	if code == http.StatusOK {
		last = r.now
	}
	b := make([]byte, 0, 384)
	b = appendTime(append(b, `{"lastUpdated":`...), last)
	b = appendTime(append(b, `,"currentTime":`...), r.now)
	if node {
		b = strconv.AppendBool(append(b, `,"nodeEligible":`...), r.eligible)
	}
	b = strconv.AppendBool(append(b, `,"healthy":`...), r.healthy)
	if r.known && len(h.families) > 0 {
		separator := `,"status":{"`
		for _, f := range h.families {
			b = append(append(b, separator...), f.String()...)
			b = appendTime(append(b, `":{"lastUpdated":`...), r.updated)
			b = strconv.AppendBool(append(b, `,"healthy":`...), r.healthy)
			b = append(b, '}')
			separator = `,"`
		}
		b = append(b, '}')
	}
	return append(b, '}')
}

func appendTime(b []byte, t time.Time) []byte {
	return append(t.AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

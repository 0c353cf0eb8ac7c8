package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
)

// Engine is the part of [engine.Engine] that the API reads.
type Engine interface {
	Look(func(engine.View))
	Changes(before uint64, limit int) (some []engine.Change, total uint64)
}

// Settings are the parts of a Server. All functions must be safe for concurrent use.
type Settings struct {
	Engine  Engine
	About   statusapi.Node // the fields that never change
	Health  func() statusapi.Health
	Tracked func() *statusapi.Tracking // returns nil if the kernel's table cannot be read
	Traffic Traffic
	Explain func(ctx context.Context, q url.Values) (*statusapi.Explanation, error)
	Page    http.Handler // serves every path outside the API

	// Files returns the problems of manifest files, sorted. The caller may append to
	// the slice.
	Files func() []statusapi.Problem
}

// Traffic returns traffic counters.
type Traffic interface {
	// Of returns the counters of some rows and of their endpoints. Its cost is
	// proportional to their number.
	Of(ctx context.Context, rows []proxy.PortKey) []statusapi.PortTraffic
	// All returns the counters of every service port that had traffic, or of every
	// endpoint, and when they were read. If nothing is counted, off says why.
	All(ctx context.Context, endpoints bool) (all []statusapi.PortTraffic, counted time.Time, off string)
}

// Server serves the status API.
type Server struct {
	settings    Settings
	names       names
	lastTraffic atomic.Pointer[trafficSnapshot]
	listing     chan struct{} // a semaphore for requests that read all Services
}

// New returns a Server. It starts nothing.
func New(s Settings) *Server { return &Server{settings: s, listing: make(chan struct{}, 1)} }

// Handler returns the handler of the API and the page. It refuses methods other than
// GET and HEAD, and hosts that [AllowHosts] refuses.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	explain := func(ctx context.Context, r *request) (any, error) { return s.settings.Explain(ctx, r.query) }
	for path, answer := range map[string]func(context.Context, *request) (any, error){
		statusapi.NodePath:                             s.node,
		statusapi.ServicesPath:                         s.services,
		statusapi.ServicesPath + "/{namespace}/{name}": s.service,
		statusapi.ProblemsPath:                         s.problems,
		statusapi.ChangesPath:                          s.changes,
		statusapi.TrafficPath:                          s.traffic,
		statusapi.ExplainPath:                          explain,
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			body, err := answer(r.Context(), &request{r.URL.Query(), r})
			send(w, body, err)
		})
	}
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		send(w, nil, refuse(http.StatusNotFound, "the status API has no path %s", r.URL.Path))
	})
	mux.Handle("/", s.settings.Page)
	return readOnly(AllowHosts(mux))
}

// readOnly returns a handler that refuses methods other than GET and HEAD, and limits
// the time of a response.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			send(w, nil, refuse(http.StatusMethodNotAllowed, "method %s is not allowed: the status API is read-only, use GET", r.Method))
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // fails for the writer of a test only
		next.ServeHTTP(w, r)
	})
}

// writeTimeout bounds how long a client that does not read its response holds
// memory and a connection.
const writeTimeout = time.Minute

// refuse returns an error that is sent as a response with an HTTP status code.
func refuse(code int, format string, args ...any) error {
	return &statusapi.ResponseError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// send responds with body or, if err is not nil, with err.
func send(w http.ResponseWriter, body any, err error) {
	code := http.StatusOK
	if err != nil {
		code, body = http.StatusInternalServerError, statusapi.Error{Message: err.Error()}
		if e, ok := errors.AsType[*statusapi.ResponseError](err); ok {
			code = e.Code
		}
	}
	text, err := json.Marshal(body)
	if err != nil {
		code, text = http.StatusInternalServerError, []byte(`{"error":"the response cannot be encoded as JSON"}`)
	}
	h := w.Header()
	h.Set(statusapi.VersionHeader, statusapi.Version)
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if code == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="sluice"`)
	}
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // fails if the client disconnected
}

type request struct {
	query url.Values
	http  *http.Request
}

// limit returns how many items the request wants at most.
func (r *request) limit() (int, error) {
	text := cmp.Or(r.query.Get("limit"), strconv.Itoa(statusapi.DefaultPage))
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > statusapi.MaxPage {
		return 0, refuse(http.StatusBadRequest, "limit %q: want a number from 1 to %d", text, statusapi.MaxPage)
	}
	return n, nil
}

// page returns a copy of the part of a list that the request wants, and the continue
// token of the next page, empty if this is the last.
func page[T any](r *request, all []T) (some []T, next string, err error) {
	return pageOf(r, all, statusapi.MaxPage)
}

// pageOf is like page, with at most limit items whatever the request wants.
func pageOf[T any](r *request, all []T, limit int) (some []T, next string, err error) {
	requested, err := r.limit()
	if err != nil {
		return nil, "", err
	}
	text := cmp.Or(r.query.Get("continue"), "0")
	from, err := strconv.Atoi(text)
	if err != nil || from < 0 {
		return nil, "", refuse(http.StatusBadRequest, "continue %q: want the value that an earlier response has in continue", text)
	}
	from = min(from, len(all))
	to := min(from+min(requested, limit), len(all))
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	return append([]T{}, all[from:to]...), next, nil // JSON has an empty list, not null
}

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

	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/engine"
	"sluice/internal/statusapi"
)

// Engine is what the API tells of.
type Engine interface {
	Look(func(engine.View))
	Changes(before uint64, limit int) (some []engine.Change, total uint64)
}

// Settings are what a Server is made of. All functions may be called by any
// goroutine.
type Settings struct {
	Engine  Engine
	About   statusapi.Node // what never changes
	Health  func() statusapi.Health
	Tracked func() *statusapi.Tracking // nil: the kernel does not tell
	Traffic Traffic
	Explain func(ctx context.Context, q url.Values) (*statusapi.Explanation, error)
	Page    http.Handler // for people

	// Files returns what is wrong with files that objects come from, in order and
	// in a list of its own.
	Files func() []statusapi.Problem
}

// Traffic is who counts traffic.
type Traffic interface {
	// Of returns what was counted for a Service, by port and endpoint; nil: nothing.
	Of(ctx context.Context, name types.NamespacedName) []statusapi.PortTraffic
	// All returns what was counted for every service port that had traffic, or
	// for each of its endpoints, when, and why nothing is counted, if so.
	All(ctx context.Context, endpoints bool) (all []statusapi.PortTraffic, counted time.Time, off string)
}

type Server struct {
	settings Settings
	names    names
	traffics atomic.Pointer[trafficAnswer]
	listing  chan struct{} // has an element while all Services are looked at
}

func New(s Settings) *Server { return &Server{settings: s, listing: make(chan struct{}, 1)} }

// Handler answers GET and HEAD, and nothing else.
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
		send(w, nil, refuse(http.StatusNotFound, "the status API has no %s", r.URL.Path))
	})
	mux.Handle("/", s.settings.Page)
	return readOnly(AllowHosts(mux))
}

// readOnly refuses whatever could ask for more than an answer.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			send(w, nil, refuse(http.StatusMethodNotAllowed, "the status API only reads: GET, not %s", r.Method))
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout)) // a test's writer has none
		next.ServeHTTP(w, r)
	})
}

// answerTimeout frees what a client holds that does not read its answer.
const answerTimeout = time.Minute

// refuse returns the error of a request that cannot be answered.
func refuse(code int, format string, args ...any) error {
	return &statusapi.ResponseError{Code: code, Message: fmt.Sprintf(format, args...)}
}

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
		code, text = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be encoded"}`)
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
	_, _ = w.Write(append(text, '\n')) // the client has gone
}

type request struct {
	query url.Values
	http  *http.Request
}

// limit returns how many items are asked for.
func (r *request) limit() (int, error) {
	text := cmp.Or(r.query.Get("limit"), strconv.Itoa(statusapi.DefaultPage))
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > statusapi.MaxPage {
		return 0, refuse(http.StatusBadRequest, "limit %q: want a number from 1 to %d", text, statusapi.MaxPage)
	}
	return n, nil
}

// page cuts a page out of a list that is all there, and says where the next begins.
func page[T any](r *request, all []T) (some []T, next string, err error) {
	return pageOf(r, all, statusapi.MaxPage)
}

// pageOf is page with a smaller bound.
func pageOf[T any](r *request, all []T, most int) (some []T, next string, err error) {
	limit, err := r.limit()
	if err != nil {
		return nil, "", err
	}
	text := cmp.Or(r.query.Get("continue"), "0")
	from, err := strconv.Atoi(text)
	if err != nil || from < 0 {
		return nil, "", refuse(http.StatusBadRequest, "continue %q: want what an earlier answer has there", text)
	}
	from = min(from, len(all))
	to := min(from+min(limit, most), len(all))
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	return append([]T{}, all[from:to]...), next, nil // JSON has an empty list, not null
}

package status

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

// FuzzQuery checks that the API responds to any URL with JSON and a bounded list, and
// never with an internal error.
func FuzzQuery(f *testing.F) {
	for _, query := range []string{
		"", "limit=1", "limit=-1", "limit=999999999999999999999", "continue=-1", "continue=9223372036854775807", "sort=-name&filter=WEB",
		"namespace=%00", "problems=maybe", "since=x&wait=1h", "limit=1&limit=2", "endpoints=true", "to=ns/web&from=::1&proto=x", "%zz", ";",
	} {
		for _, path := range []string{"services", "services/ns/web", "services/%2e%2e/web", "problems", "changes", "traffic", "explain", "node", "", "../healthz"} {
			f.Add(path, query)
		}
	}
	var handler http.Handler
	f.Fuzz(func(t *testing.T, path, query string) {
		if handler == nil {
			handler = idleHandler()
		}
		u := url.URL{Path: "/v1/" + path, RawQuery: query}
		request := "GET " + u.RequestURI() + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(request)))
		if err != nil {
			return // A server refuses this before it calls a handler.
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		switch w.Code {
		case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusNotImplemented:
		case http.StatusMovedPermanently, http.StatusTemporaryRedirect: // a path that is not clean
			if to, err := url.Parse(w.Header().Get("Location")); err != nil || to.Host != "" {
				t.Errorf("%s?%s redirects to %q", path, query, w.Header().Get("Location"))
			}
			return
		default:
			t.Errorf("%s?%s: HTTP %d %s", path, query, w.Code, w.Body)
		}
		var list struct{ Items []any }
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Items) > statusapi.MaxPage {
			t.Errorf("%s?%s: %d items, error %v: %s", path, query, len(list.Items), err, w.Body)
		}
	})
}

// idleHandler returns the API of an engine that does not run.
func idleHandler() http.Handler {
	e := engine.New(engine.Settings{
		Dataplane: &plane{}, Resolver: resolve.New(resolve.Settings{NodeName: "here", Families: proxy.Families[:]}), Observer: silent{},
	})
	addServices(e)
	return New(settingsOf(e)).Handler()
}

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

// FuzzQuery asks the API whatever a client can put into a URL. It answers with
// JSON, a bounded list, and never that it failed.
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
			handler = standing()
		}
		u := url.URL{Path: "/v1/" + path, RawQuery: query}
		request := "GET " + u.RequestURI() + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(request)))
		if err != nil {
			return // no server reads that
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		switch w.Code {
		case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusNotImplemented:
		case http.StatusMovedPermanently, http.StatusTemporaryRedirect: // a path that is not clean
			if to, err := url.Parse(w.Header().Get("Location")); err != nil || to.Host != "" {
				t.Errorf("%s?%s leads to %q", path, query, w.Header().Get("Location"))
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

// standing is the API of an engine that does not run.
func standing() http.Handler {
	e := engine.New(engine.Settings{
		Dataplane: &plane{}, Resolver: resolve.New(resolve.Settings{NodeName: "here", Families: proxy.Families[:]}), Observer: silent{},
	})
	town(e)
	return New(settingsOf(e)).Handler()
}

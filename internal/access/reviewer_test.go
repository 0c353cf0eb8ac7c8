package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/apiclient"
	"sluice/internal/statusapi"
)

const path = "/v1/node"

var reader = authenticationv1.UserInfo{
	Username: "reader", UID: "7", Groups: []string{"system:authenticated"},
	Extra: map[string]authenticationv1.ExtraValue{"scopes": {"one", "two"}},
}

// apiServer replaces the network, so that it works with the test's fake time. It knows
// the tokens good, whose user may get one path, and guest, whose user may get none.
type apiServer struct {
	mu      sync.Mutex
	code    int    // instead of an answer; -1: nobody answers
	text    string // the same, instead of a token review
	revoked bool   // the token is good no more
	hangs   bool   // until the request is given up
	asked   []string
	last    authorizationv1.SubjectAccessReviewSpec
	now     int // requests under way
	most    int // at once
}

func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	defer func() {
		s.now--
		s.mu.Unlock()
	}()
	if s.hangs {
		s.mu.Unlock()
		<-r.Context().Done()
		s.mu.Lock()
		return nil, r.Context().Err()
	}
	code, body := s.answer(r)
	if code == -1 {
		return nil, errors.New("nobody answers")
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1"}}, Request: r,
		Body: io.NopCloser(bytes.NewReader(body)),
	}, nil
}

func (s *apiServer) answer(r *http.Request) (code int, body []byte) {
	if s.code != 0 {
		return s.code, fmt.Appendf(nil, `{"kind": "Status", "apiVersion": "v1", "code": %d, "reason": %q}`,
			s.code, map[int]string{http.StatusForbidden: "Forbidden"}[s.code])
	}
	var object any
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Kind != "TokenReview" {
			return http.StatusBadRequest, nil
		}
		if s.text != "" {
			return http.StatusCreated, []byte(s.text)
		}
		review.Status.Error = "invalid bearer token"
		if review.Spec.Token == "good" && !s.revoked {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: reader}
		}
		if review.Spec.Token == "guest" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "guest"}}
		}
		object = review
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Kind != "SubjectAccessReview" {
			return http.StatusBadRequest, nil
		}
		s.last = review.Spec
		to := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == reader.Username && to.Path == path || to.Path == "/v1/denied"
		review.Status.Denied = to.Path == "/v1/denied"
		object = review
	default:
		return http.StatusNotFound, nil
	}
	body, _ = json.Marshal(object)
	return http.StatusCreated, body
}

// tell changes the behaviour of the API server, and clears the recorded requests.
func (s *apiServer) tell(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.asked = nil
}

func (s *apiServer) askedFor() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func newReviewer(t *testing.T, s *apiServer) *Reviewer {
	t.Helper()
	client, err := apiclient.New(&rest.Config{Host: "http://api", Transport: s, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return New(client)
}

// code returns the HTTP status code of an error.
func code(err error) int {
	if err == nil {
		return http.StatusOK
	}
	if e, ok := errors.AsType[*statusapi.ResponseError](err); ok {
		return e.Code
	}
	return 0
}

func TestAllow(t *testing.T) {
	tests := []struct {
		name        string
		server      *apiServer
		token, path string
		want        int
		says        string
	}{
		{"good", &apiServer{}, "good", path, 200, ""},
		{"another path", &apiServer{}, "good", "/v1/changes", 403, `user "reader" may not get /v1/changes`},
		{"denied by one, allowed by another", &apiServer{}, "good", "/v1/denied", 403, "may not get"},
		{"unknown token", &apiServer{}, "bad", path, 401, "does not accept this token"},
		{"nobody answers", &apiServer{code: -1}, "good", path, 503, "cannot review the request"},
		{"broken", &apiServer{code: 500}, "good", path, 503, "cannot review the request"},
		{"overloaded", &apiServer{code: 429}, "good", path, 503, "cannot review the request"},
		{"the daemon has no right", &apiServer{code: 403}, "good", path, 503, "bind ClusterRole system:auth-delegator"},
		{"no JSON", &apiServer{text: "<html>"}, "good", path, 503, "cannot review the request"},
		{"cut short", &apiServer{text: `{"status": {"authenticated": true`}, "good", path, 503, "cannot review the request"},
		{"no status", &apiServer{text: `{}`}, "good", path, 401, ""},
		{"no user", &apiServer{text: `{"status": {"authenticated": true}}`}, "good", path, 401, ""},
		{"an error beside it", &apiServer{text: `{"status": {"authenticated": true, "user": {"username": "x"}, "error": "?"}}`}, "good", path, 401, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := newReviewer(t, tt.server).Allow(t.Context(), tt.token, tt.path)
				if code(err) != tt.want || tt.says != "" && !strings.Contains(fmt.Sprint(err), tt.says) {
					t.Errorf("%d: %v; want %d: %s", code(err), err, tt.want, tt.says)
				}
				if n := len(tt.server.asked); n != 1 && tt.want == http.StatusServiceUnavailable {
					t.Errorf("the API server was asked %d times, want once", n)
				}
			})
		})
	}
}

// TestReviews checks the requests to the API server: the access review has everything
// that the token review returned about the user.
func TestReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{}
		if err := newReviewer(t, s).Allow(t.Context(), "good", path); err != nil {
			t.Fatal(err)
		}
		want := []string{"POST /apis/authentication.k8s.io/v1/tokenreviews", "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"}
		if diff := cmp.Diff(want, s.asked); diff != "" {
			t.Errorf("requests mismatch (-want +got):\n%s", diff)
		}
		spec := authorizationv1.SubjectAccessReviewSpec{
			User: "reader", UID: "7", Groups: []string{"system:authenticated"},
			Extra:                 map[string]authorizationv1.ExtraValue{"scopes": {"one", "two"}},
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		}
		if diff := cmp.Diff(spec, s.last); diff != "" {
			t.Errorf("review mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestAnswersAreCached checks that answers are cached, and for how long.
func TestAnswersAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{}
		r := newReviewer(t, s)
		expect := func(what, token, path string, want, asked int) {
			t.Helper()
			err := r.Allow(t.Context(), token, path)
			if n := len(s.askedFor()); code(err) != want || n != asked {
				t.Errorf("%s: %d after %d requests (%v), want %d after %d", what, code(err), n, err, want, asked)
			}
			s.tell(func() {})
		}
		expect("new", "good", path, 200, 2)
		expect("again", "good", path, 200, 0)
		expect("another user", "guest", path, 403, 2)
		expect("another path", "good", "/v1/changes", 403, 1)
		expect("refused again", "good", "/v1/changes", 403, 0)
		expect("bad", "bad", path, 401, 1)
		expect("bad again", "bad", path, 401, 0)
		time.Sleep(deniedTTL)
		expect("bad after a while", "bad", path, 401, 1)
		expect("refused after a while", "good", "/v1/changes", 403, 1)
		expect("good all the while", "good", path, 200, 0)
		s.tell(func() { s.code = -1 })
		expect("known while nobody answers", "good", path, 200, 0)
		time.Sleep(allowedTTL)
		expect("forgotten while nobody answers", "good", path, 503, 1)
		s.tell(func() { s.code, s.revoked = 0, true })
		expect("revoked", "good", path, 401, 1)
		expect("revoked, again", "good", path, 401, 0)
	})
}

// TestMadeUpTokens sends a flood of invalid tokens. The rate of requests to the API
// server and the size of the caches are bounded, and a known reader is served all the
// time.
func TestMadeUpTokens(t *testing.T) {
	busy := 0
	r := flooded(t, func(t *testing.T, r *Reviewer, second, i int) {
		err := r.Allow(t.Context(), fmt.Sprint("made up ", second, i), path)
		if code(err) == http.StatusServiceUnavailable {
			busy++
		} else if code(err) != http.StatusUnauthorized {
			t.Fatalf("a made-up token: %v", err)
		}
	})
	if busy == 0 {
		t.Error("nobody was told to try again")
	}
	if n := len(r.rejected.entries); n > maxRejected {
		t.Errorf("%d tokens are cached", n)
	}
}

// TestGuestsLockNobodyOut sends a flood of requests for different paths with a valid
// token that may get none, as every pod has one.
func TestGuestsLockNobodyOut(t *testing.T) {
	flooded(t, func(t *testing.T, r *Reviewer, second, i int) {
		if err := r.Allow(t.Context(), "guest", fmt.Sprintf("/v1/%d/%d", second, i)); err == nil {
			t.Fatal("a guest may read")
		}
	})
}

// flooded calls ask a hundred times a second for ten minutes, and checks that meanwhile
// a known reader is served and the rate of requests to the API server is bounded.
func flooded(t *testing.T, ask func(t *testing.T, r *Reviewer, second, i int)) (r *Reviewer) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{}
		r = newReviewer(t, s)
		if err := r.Allow(t.Context(), "good", path); err != nil {
			t.Fatal(err)
		}
		s.tell(func() {})
		const seconds = 600
		for second := range seconds {
			for i := range 100 {
				ask(t, r, second, i)
			}
			if err := r.Allow(t.Context(), "good", path); err != nil {
				t.Fatalf("a known reader after %d s: %v", second, err)
			}
			time.Sleep(time.Second)
		}
		if n, most := len(s.askedFor()), seconds*otherRate+otherBurst+2*seconds/int(allowedTTL.Seconds())+2; n > most {
			t.Errorf("the API server was asked %d times, want at most %d", n, most)
		}
	})
	return r
}

// TestSlowAPIServer checks that few requests wait for a slow API server, and none for
// long.
func TestSlowAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{hangs: true}
		r := newReviewer(t, s)
		var all sync.WaitGroup
		started := time.Now()
		for i := range 2 * otherBurst {
			all.Go(func() {
				if err := r.Allow(t.Context(), fmt.Sprint(i), path); code(err) != http.StatusServiceUnavailable {
					t.Errorf("%v, want 503", err)
				}
			})
		}
		all.Wait()
		if took := time.Since(started); took != reviewTimeout {
			t.Errorf("it took %v, want %v", took, reviewTimeout)
		}
		if s.most != maxReviews {
			t.Errorf("%d requests were under way at once, want %d", s.most, maxReviews)
		}
	})
}

// TestTokensAreNotLogged searches the log at the highest verbosity, including that of
// client-go. The API server repeats the token in its response.
func TestTokensAreNotLogged(t *testing.T) {
	const token = "tell-nobody"
	for _, answer := range []int{http.StatusCreated, http.StatusForbidden} {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(10)))
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(answer)
			if answer == http.StatusCreated {
				_, _ = io.Copy(w, r.Body)
				return
			}
			_, _ = io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "reason": "Forbidden", "code": 403}`)
		}))
		client, err := apiclient.New(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		if err := New(client).Allow(klog.NewContext(t.Context(), logger), token, path); err == nil || strings.Contains(err.Error(), token) {
			t.Errorf("error %v", err)
		}
		server.Close()
		if said := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); strings.Contains(said, token) {
			t.Errorf("the token is in the log:\n%s", said)
		}
	}
}

// TestErrorsAreLoggedOnce checks that an error of the API server is logged once,
// however many requests fail, and again after it has recovered.
func TestErrorsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx := klog.NewContext(t.Context(), logger)
		s := &apiServer{code: -1}
		r := newReviewer(t, s)
		said := func() int {
			return strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "The status API denies access over TCP")
		}
		gone, leave := context.WithCancel(ctx)
		leave()
		for i := range 5 {
			_ = r.Allow(ctx, fmt.Sprint(i), path)
			_ = r.Allow(gone, fmt.Sprint(i), path)
		}
		if n := said(); n != 1 {
			t.Errorf("%d errors logged, want one", n)
		}
		s.tell(func() { s.code = 0 })
		_ = r.Allow(ctx, "good", path)
		s.tell(func() { s.code = -1 })
		_ = r.Allow(ctx, "other", path)
		if n := said(); n != 2 {
			t.Errorf("%d errors logged, want two", n)
		}
	})
}

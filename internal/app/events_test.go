package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"sluice/internal/apiclient"
)

// apiServer stands where the network is, so that its time is the test's.
type apiServer struct {
	answers []int // codes to give, the last again and again; 0: nobody answers
	asked   []string
	events  []eventsv1.Event
}

func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	code := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var e eventsv1.Event
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, err
	}
	s.asked = append(s.asked, fmt.Sprint(r.Method, " ", code))
	s.events = append(s.events, e)
	if code == 0 {
		return nil, errors.New("nobody answers")
	}
	reason := map[int]string{http.StatusNotFound: "NotFound", http.StatusConflict: "AlreadyExists", http.StatusForbidden: "Forbidden"}[code]
	answer := fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "code": %d, "reason": %q}`, code, reason)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(bytes.NewReader([]byte(answer))),
	}, nil
}

func (s *apiServer) recorder(t *testing.T) *recorder {
	t.Helper()
	client, err := apiclient.New(&rest.Config{Host: "http://api", Transport: s, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return newRecorder(t.Context(), client, "node-1")
}

func shopService(name string) v1.ObjectReference {
	return serviceReference(types.NamespacedName{Namespace: "shop", Name: name})
}

func TestEventsAreTriedAgain(t *testing.T) {
	tests := []struct {
		name    string
		answers []int
		want    []string
	}{
		{"first try", []int{201}, []string{"POST 201"}},
		{"nobody answers for a while", []int{0, 0, 201}, []string{"POST 0", "POST 0", "POST 201"}},
		{"the answer was lost", []int{0, 409}, []string{"POST 0", "POST 409"}},
		{"refused", []int{403}, []string{"POST 403"}},
		{"nobody ever answers", []int{0}, strings.Split(strings.Repeat("POST 0,", eventTries-1)+"POST 0", ",")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &apiServer{answers: tt.answers}
				r := s.recorder(t)
				r.record(r.node, v1.EventTypeNormal, reasonStarting, "")
				time.Sleep(time.Hour)
				synctest.Wait()
				if diff := cmp.Diff(tt.want, s.asked); diff != "" {
					t.Errorf("requests mismatch (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestEventsSayWhatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{answers: []int{201}}
		r := s.recorder(t)
		r.record(r.node, v1.EventTypeNormal, reasonStarting, "")
		r.record(shopService("cart"), v1.EventTypeWarning, reasonServiceHealth, strings.Repeat("é", maxNote))
		synctest.Wait()
		r.recordFinal(t.Context(), reasonHealthPort, "in use")
		if len(s.events) != 3 {
			t.Fatalf("%d events, want 3", len(s.events))
		}
		type row struct{ namespace, about, kind, reason, action, controller string }
		want := []row{
			{"default", "Node/node-1", "Normal", "Starting", "StartKubeProxy", "kube-proxy"},
			{"shop", "Service/cart", "Warning", "FailedToStartServiceHealthcheck", "Listen", "kube-proxy"},
			{"default", "Node/node-1", "Warning", "FailedToStartProxierHealthcheck", "StartKubeProxy", "kube-proxy"},
		}
		for i, e := range s.events {
			got := row{e.Namespace, e.Regarding.Kind + "/" + e.Regarding.Name, e.Type, e.Reason, e.Action, e.ReportingController}
			if got != want[i] {
				t.Errorf("event %d is %v, want %v", i, got, want[i])
			}
			if !strings.HasPrefix(e.Name, e.Regarding.Name+".") || !e.EventTime.Equal(&s.events[0].EventTime) {
				t.Errorf("event %d is named %q and of %v", i, e.Name, e.EventTime)
			}
		}
		if got := s.events[1].Note; len(got) != maxNote || strings.Trim(got, "é") != "" {
			t.Errorf("the note has %d bytes, the API takes %d", len(got), maxNote)
		}
	})
}

func TestRepeatedEventsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{answers: []int{201, 200, 404, 201, 201}}
		r := s.recorder(t)
		for _, pause := range []time.Duration{0, time.Minute, seriesGap, seriesGap + time.Second} {
			time.Sleep(pause)
			r.record(shopService("cart"), v1.EventTypeWarning, reasonServiceHealth, "in use")
			synctest.Wait()
		}
		// The third finds no event to count in, the fourth is a new one.
		if diff := cmp.Diff([]string{"POST 201", "PATCH 200", "PATCH 404", "POST 201", "POST 201"}, s.asked); diff != "" {
			t.Fatalf("requests mismatch (-want +got):\n%s", diff)
		}
		var counts []int32
		for _, e := range s.events {
			if e.Series == nil {
				counts = append(counts, 0)
				continue
			}
			counts = append(counts, e.Series.Count)
		}
		if diff := cmp.Diff([]int32{0, 2, 3, 3, 0}, counts); diff != "" {
			t.Errorf("counts mismatch (-want +got):\n%s", diff)
		}
	})
}

// TestEventsNeverBlock records many more events than fit into the queue while the
// API server does not answer.
func TestEventsNeverBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{answers: []int{0}}
		ctx, cancel := context.WithCancel(t.Context())
		client, err := apiclient.New(&rest.Config{Host: "http://api", Transport: s, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		r := newRecorder(ctx, client, "node-1")
		for i := range 100 * maxEvents {
			r.record(shopService(fmt.Sprint("cart-", i)), v1.EventTypeWarning, reasonServiceHealth, "in use")
		}
		synctest.Wait()
		cancel()
		synctest.Wait() // the sender ends in the middle of a pause
		if len(s.asked) != 1 {
			t.Errorf("%d requests, want one", len(s.asked))
		}
	})
}

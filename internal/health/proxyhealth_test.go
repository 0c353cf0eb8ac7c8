package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/proxy"
)

var errSync = errors.New("the kernel was busy")

// answers counts.
type answers struct{ healthz, livez map[int]int }

func (a *answers) Healthz(code int) { a.healthz[code]++ }
func (a *answers) Livez(code int)   { a.livez[code]++ }

// probed is a ProxyHealth with a timeout of a minute, in fake time.
type probed struct {
	*ProxyHealth
	t       *testing.T
	answers *answers
}

func probe(t *testing.T, do func(p *probed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &answers{map[int]int{}, map[int]int{}}
		do(&probed{NewProxyHealth(Settings{Families: proxy.Families[:], Timeout: time.Minute, Healthz: a.Healthz, Livez: a.Livez}), t, a})
	})
}

// synced has done its first sync, on a node that is known.
func synced(t *testing.T, do func(p *probed)) {
	t.Helper()
	probe(t, func(p *probed) {
		p.SyncNode(&v1.Node{})
		p.sync(nil)
		do(p)
	})
}

func (p *probed) sync(err error) {
	p.Queued()
	p.Began()
	p.Done(err)
}

func (p *probed) get(path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func (p *probed) want(when string, healthz, livez int) {
	p.t.Helper()
	if got := p.get("/healthz").Code; got != healthz {
		p.t.Errorf("%s: /healthz %d; want %d", when, got, healthz)
	}
	if got := p.get("/livez").Code; got != livez {
		p.t.Errorf("%s: /livez %d; want %d", when, got, livez)
	}
	if got := p.Healthy(); got != (livez == 200) {
		p.t.Errorf("%s: healthy %t", when, got)
	}
}

func TestNotHealthyBeforeTheFirstSync(t *testing.T) {
	probe(t, func(p *probed) {
		p.SyncNode(&v1.Node{})
		p.want("at the start", 503, 503)
		p.Queued()
		p.want("asked for", 503, 503)
		p.Began()
		p.want("under way", 503, 503)
		p.Done(errSync)
		p.want("failed", 503, 503)
		time.Sleep(time.Hour)
		p.Began()
		p.Done(nil)
		p.want("done", 200, 200)
		time.Sleep(24 * time.Hour)
		p.want("nothing to do since", 200, 200)
	})
}

func TestStaleness(t *testing.T) {
	synced(t, func(p *probed) {
		p.Queued()
		time.Sleep(time.Minute - time.Nanosecond)
		p.Queued() // The first one counts.
		p.want("just before the timeout", 200, 200)
		time.Sleep(time.Nanosecond)
		p.want("at the timeout", 503, 503)
		p.Began()
		p.want("begun", 503, 503)
		p.Done(errSync)
		p.want("failed", 503, 503)
		p.Began()
		p.Done(nil)
		p.want("done", 200, 200)
	})
}

func TestFailingSyncsAreStale(t *testing.T) {
	synced(t, func(p *probed) {
		p.Began() // Nobody asked for it: its time had come.
		p.Done(errSync)
		time.Sleep(59 * time.Second)
		p.Began()
		p.Done(errSync)
		p.want("failing for 59 s", 200, 200)
		time.Sleep(time.Second)
		p.want("failing for 60 s", 503, 503)
	})
}

func TestRequestDuringASyncIsNotServedByIt(t *testing.T) {
	synced(t, func(p *probed) {
		p.Queued()
		p.Began()
		time.Sleep(10 * time.Second)
		p.Queued()
		p.Done(nil)
		time.Sleep(59 * time.Second)
		p.want("59 s after the second request", 200, 200)
		time.Sleep(time.Second)
		p.want("60 s after the second request", 503, 503)
	})
}

func TestTimeoutChanges(t *testing.T) {
	synced(t, func(p *probed) {
		p.Queued()
		time.Sleep(30 * time.Second)
		p.SetTimeout(20 * time.Second)
		p.want("shorter", 503, 503)
		p.SetTimeout(2 * time.Minute)
		p.want("longer", 200, 200)
	})
}

func TestNodeEligibility(t *testing.T) {
	tainted := func(key string) *v1.Node {
		return &v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "first"}, {Key: key, Value: "x", Effect: v1.TaintEffectPreferNoSchedule}}}}
	}
	going := &v1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.Now())}}
	tests := []struct {
		name    string
		tell    func(p *probed)
		healthz int
	}{
		{"never heard of", func(*probed) {}, 503},
		{"known", func(p *probed) { p.SyncNode(&v1.Node{}) }, 200},
		{"hc-04 to be deleted by the autoscaler", func(p *probed) { p.SyncNode(tainted("ToBeDeletedByClusterAutoscaler")) }, 503},
		{"hc-06 another taint", func(p *probed) { p.SyncNode(tainted("other")) }, 200},
		{"being deleted", func(p *probed) { p.SyncNode(&v1.Node{}); p.SyncNode(going) }, 503},
		{"not any more", func(p *probed) {
			p.SyncNode(tainted("ToBeDeletedByClusterAutoscaler"))
			p.SyncNode(tainted("other"))
		}, 200},
		{"deleted", func(p *probed) { p.SyncNode(&v1.Node{}); p.SyncNode(nil) }, 200},
		{"being deleted, and deleted", func(p *probed) { p.SyncNode(going); p.SyncNode(nil) }, 503},
		{"deleted before it was known", func(p *probed) { p.SyncNode(nil) }, 503},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			probe(t, func(p *probed) {
				tt.tell(p)
				p.sync(nil)
				p.want("after a sync", tt.healthz, 200)
				var body map[string]any
				if err := json.Unmarshal(p.get("/healthz").Body.Bytes(), &body); err != nil {
					t.Fatal(err)
				}
				if body["healthy"] != true || body["nodeEligible"] != (tt.healthz == 200) {
					t.Errorf("body %v", body)
				}
			})
		})
	}
}

// TestBodies compares whole answers.
func TestBodies(t *testing.T) {
	probe(t, func(p *probed) {
		stamp := func(at time.Time) string { return `"` + at.Format(time.RFC3339Nano) + `"` }
		want := func(path string, code int, body string) {
			t.Helper()
			w := p.get(path)
			if diff := cmp.Diff(body, w.Body.String()); diff != "" || w.Code != code {
				t.Errorf("%s: code %d, want %d; body mismatch (-want +got):\n%s", path, w.Code, code, diff)
			}
			if !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s: not JSON: %s", path, w.Body)
			}
			header := http.Header{"Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"}}
			if diff := cmp.Diff(header, w.Header()); diff != "" {
				t.Errorf("%s: headers mismatch (-want +got):\n%s", path, diff)
			}
		}
		families := func(last string, healthy bool) string {
			return fmt.Sprintf(`"status":{"IPv4":{"lastUpdated":%[1]s,"healthy":%[2]t},"IPv6":{"lastUpdated":%[1]s,"healthy":%[2]t}}`, last, healthy)
		}
		never := `"0001-01-01T00:00:00Z"`
		now := stamp(time.Now())
		want("/healthz", 503, fmt.Sprintf(`{"lastUpdated":%s,"currentTime":%s,"nodeEligible":false,"healthy":false}`, never, now))
		want("/livez", 503, fmt.Sprintf(`{"lastUpdated":%s,"currentTime":%s,"healthy":false}`, never, now))
		p.Queued()
		want("/livez", 503, fmt.Sprintf(`{"lastUpdated":%s,"currentTime":%s,"healthy":false,%s}`, never, now, families(never, false)))
		p.Began()
		p.Done(nil)
		last := stamp(time.Now())
		time.Sleep(1500 * time.Millisecond)
		now = stamp(time.Now())
		want("/healthz", 503, fmt.Sprintf(`{"lastUpdated":%s,"currentTime":%s,"nodeEligible":false,"healthy":true,%s}`, last, now, families(last, true)))
		want("/livez", 200, fmt.Sprintf(`{"lastUpdated":%[1]s,"currentTime":%[1]s,"healthy":true,%[2]s}`, now, families(last, true)))
		p.SyncNode(&v1.Node{})
		want("/healthz", 200, fmt.Sprintf(`{"lastUpdated":%[1]s,"currentTime":%[1]s,"nodeEligible":true,"healthy":true,%[2]s}`, now, families(last, true)))
		p.Queued()
		time.Sleep(time.Minute)
		now = stamp(time.Now())
		want("/healthz", 503, fmt.Sprintf(`{"lastUpdated":%s,"currentTime":%s,"nodeEligible":true,"healthy":false,%s}`, last, now, families(last, false)))
	})
}

func TestOneFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewProxyHealth(Settings{Families: []proxy.Family{proxy.IPv6}, Timeout: time.Minute, Healthz: func(int) {}, Livez: func(int) {}})
		h.Queued()
		w := httptest.NewRecorder()
		h.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/livez", nil))
		var body struct{ Status map[string]any }
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		if len(body.Status) != 1 || body.Status["IPv6"] == nil {
			t.Errorf("status %v; want that of IPv6 alone", body.Status)
		}
	})
}

func TestMethodsPathsAndCounts(t *testing.T) {
	synced(t, func(p *probed) {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
			for path, want := range map[string]int{"/healthz": 200, "/livez": 200, "/": 404, "/healthz/ping": 404, "/metrics": 404} {
				w := httptest.NewRecorder()
				p.Handler().ServeHTTP(w, httptest.NewRequest(method, path, nil))
				if w.Code != want {
					t.Errorf("%s %s: %d; want %d", method, path, w.Code, want)
				}
			}
		}
		p.SyncNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.Now())}})
		p.get("/healthz")
		if diff := cmp.Diff(map[int]int{200: 4, 503: 1}, p.answers.healthz); diff != "" {
			t.Errorf("/healthz counts mismatch (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[int]int{200: 4}, p.answers.livez); diff != "" {
			t.Errorf("/livez counts mismatch (-want +got):\n%s", diff)
		}
	})
}

func BenchmarkHealthz(b *testing.B) {
	h := NewProxyHealth(Settings{Families: proxy.Families[:], Timeout: time.Minute, Healthz: func(int) {}, Livez: func(int) {}})
	h.Began()
	h.Done(nil)
	handler, r := h.Handler(), httptest.NewRequest(http.MethodGet, "/healthz", nil)
	b.ReportAllocs()
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
}

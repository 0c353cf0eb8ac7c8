package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/cli"
	"sluice/internal/engine"
	"sluice/internal/health"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source/informer"
	"sluice/internal/statusapi"
)

// handlerTransport sends requests to a handler, without a network.
type handlerTransport struct{ http.Handler }

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

// statusOf returns a client of the status API of an engine.
func statusOf(e *engine.Engine) *statusapi.Client {
	s := &ProxyServer{
		plan: plan{options: NewOptions(), node: "here", source: folderSource("objects")}, health: health.NewProxyHealth(health.Settings{Timeout: time.Minute}),
	}
	return statusapi.At(&http.Client{Transport: handlerTransport{s.newStatusServer(e).Handler()}}, "http://localhost", "here")
}

// wantDoubt checks that an engine's doubts have one of a kind that gives a reason, and that
// the JSON, the text of status, --wait and the metric have it; the page shows every
// doubt of the JSON. It returns the doubt.
func wantDoubt(t *testing.T, e *engine.Engine, kind engine.DoubtKind, reason string) statusapi.Doubt {
	t.Helper()
	c := statusOf(e)
	var text bytes.Buffer
	r, err := cli.Status(t.Context(), &text, c, cli.StatusOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(r.Node.Doubts, func(d statusapi.Doubt) bool { return d.Kind == string(kind) && strings.Contains(d.Reason, reason) })
	if i < 0 {
		t.Fatalf("doubts %+v, want %s because of %q", r.Node.Doubts, kind, reason)
	}
	d := r.Node.Doubts[i]
	if !strings.Contains(text.String(), string(kind)) || !strings.Contains(text.String(), reason) || strings.Contains(text.String(), "\nAll in force (") {
		t.Errorf("status does not say %s, because of %q:\n%s", kind, reason, text.String())
	}
	if err := cli.Wait(t.Context(), c, 0); err == nil && d.Severity == statusapi.DoubtError {
		t.Errorf("--wait takes everything to be in force, with doubt %+v", d)
	}
	if n := countDoubts(e, kind); n == 0 {
		t.Errorf("metric sluice_doubts of %s is 0", kind)
	}
	return d
}

// countDoubts returns the metric's value for a kind.
func countDoubts(e *engine.Engine, kind engine.DoubtKind) (n float64) {
	doubtsMetric(e.Doubts).Read(func(v float64, labels ...string) {
		if labels[0] == string(kind) {
			n = v
		}
	})
	return n
}

// wantNoDoubt checks that there is no doubt of a kind any more.
func wantNoDoubt(t *testing.T, e *engine.Engine, kind engine.DoubtKind) {
	t.Helper()
	var n statusapi.Node
	if err := statusOf(e).Get(t.Context(), statusapi.NodePath, url.Values{}, &n); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(n.Doubts, func(d statusapi.Doubt) bool { return d.Kind == string(kind) }) || countDoubts(e, kind) != 0 {
		t.Errorf("doubts %+v, metric %v; want no %s", n.Doubts, countDoubts(e, kind), kind)
	}
}

// watchedPlane accepts all rows, and reports changes by other processes on demand.
type watchedPlane struct{ seen chan string }

func (watchedPlane) Sync(context.Context, *proxy.State) (proxy.Refused, error) { return nil, nil }

func (watchedPlane) Apply(context.Context, *proxy.State, *proxy.Changed) (proxy.Refused, error) {
	return nil, nil
}

func (p watchedPlane) Watch(ctx context.Context, _ func(), changed func(string)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case what := <-p.seen:
			changed(what)
		}
	}
}

func (watchedPlane) Close() error { return nil }

// deaf is an observer that does nothing.
type deaf struct{}

func (deaf) Queued()                                                  {}
func (deaf) ServiceSeen(int)                                          {}
func (deaf) EndpointSliceSeen(_, _ *discoveryv1.EndpointSlice, _ int) {}
func (deaf) NodeSeen(*v1.Node)                                        {}
func (deaf) Repairing()                                               {}
func (deaf) Began(*proxy.Delta)                                       {}
func (deaf) Done(context.Context, engine.Result)                      {}

// newEngine returns an engine that has a list of doubts.
func newEngine(p proxy.Dataplane, doubts *engine.Doubts) *engine.Engine {
	return engine.New(engine.Settings{
		Dataplane: p, Resolver: resolve.New(resolve.Settings{NodeName: "here"}), SyncPeriod: time.Hour, Observer: deaf{}, Doubts: doubts,
	})
}

// TestChangedRulesAreShown checks what is shown from when another process keeps changing
// the rules, or keeps overrunning the socket that would tell, until they are repaired.
func TestChangedRulesAreShown(t *testing.T) {
	for _, seen := range []string{"table ip sluice deleted by nft, process 7", "unknown changes, because notifications of the kernel were lost"} {
		t.Run(seen, func(t *testing.T) { showChangedRules(t, seen) })
	}
}

func showChangedRules(t *testing.T, seen string) {
	synctest.Test(t, func(t *testing.T) {
		p := watchedPlane{make(chan string)}
		e := newEngine(p, nil)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.SyncLoop(ctx) }()
		wantDoubt(t, e, engine.NotSynced, "Services are not known yet, and rules of an earlier run, if there are any, stay in force")
		e.OnNodeSynced()
		e.OnServiceSynced()
		e.OnEndpointSlicesSynced()
		synctest.Wait()
		wantNoDoubt(t, e, engine.NotSynced)
		for range 11 { // each change makes the next repair wait longer
			p.seen <- seen
			time.Sleep(time.Second / 2)
		}
		d := wantDoubt(t, e, engine.RulesChanged, "another process changed our rules: "+seen)
		if d.NextAt == nil || !d.NextAt.After(time.Now()) || d.Since.After(time.Now()) || d.Next != "they are compared and repaired" {
			t.Errorf("%+v, want since when, what happens next and when", d)
		}
		time.Sleep(time.Minute)
		wantNoDoubt(t, e, engine.RulesChanged)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("SyncLoop: %v", err)
		}
	})
}

// TestSilentServerIsShown checks what is shown of kinds of objects that the API server is not
// heard from about.
func TestSilentServerIsShown(t *testing.T) {
	began := time.Now().Add(-time.Hour)
	lost := func(resource, reason string) informer.Lost {
		return informer.Lost{
			Resource: resource, Reason: reason, Since: began, Heard: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), NextTry: time.Now().Add(time.Minute),
		}
	}
	never := lost("nodes", "forbidden")
	never.Heard, never.NextTry = time.Time{}, time.Time{}
	for _, tt := range []struct {
		lost     []informer.Lost
		kind     engine.DoubtKind
		severity statusapi.DoubtSeverity
		reason   string
	}{
		{
			[]informer.Lost{lost("endpointslices", "connection refused"), lost("services", "connection refused")},
			engine.SourceSilent, statusapi.DoubtError,
			"changes of objects are not known (endpointslices, services: connection refused); they were last heard of at 2026-01-02T03:04:05Z",
		},
		{
			[]informer.Lost{never, lost("services", "EOF")},
			engine.SourceSilent, statusapi.DoubtError,
			"changes of objects are not known (nodes: forbidden; services: EOF); they were last heard of at 2026-01-02T03:04:05Z",
		},
		{
			[]informer.Lost{never},
			engine.SourceIncomplete, statusapi.DoubtWarning,
			"changes of objects are not known (nodes: forbidden); nothing was heard of them since the start",
		},
	} {
		doubts := new(engine.Doubts)
		e := newEngine(watchedPlane{}, doubts)
		doubtLost(doubts, tt.lost)
		d := wantDoubt(t, e, tt.kind, tt.reason)
		if d.Severity != tt.severity || d.Since.Sub(began).Abs() > time.Second || (d.NextAt == nil) != tt.lost[len(tt.lost)-1].NextTry.IsZero() {
			t.Errorf("%+v, want %s since %v, and when it is asked again", d, tt.severity, began)
		}
		doubtLost(doubts, []informer.Lost{lost("nodes", "forbidden")})
		wantNoDoubt(t, e, engine.SourceSilent)
		doubtLost(doubts, nil)
		wantNoDoubt(t, e, engine.SourceIncomplete)
	}
}

// TestFullConntrackIsShown checks the doubts about a connection tracking table that fills up,
// and is emptied.
func TestFullConntrackIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var usage atomic.Pointer[statusapi.Tracking]
		doubts := new(engine.Doubts)
		e := newEngine(watchedPlane{}, doubts)
		ctx, stop := context.WithCancel(t.Context())
		go watchConntrack(ctx, usage.Load, doubts)
		for _, tt := range []struct {
			usage *statusapi.Tracking
			want  engine.DoubtKind
		}{
			{&statusapi.Tracking{Entries: 900, Limit: 1000}, ""},
			{&statusapi.Tracking{Entries: 901, Limit: 1000}, engine.ConntrackNearlyFull},
			{&statusapi.Tracking{Entries: 1000, Limit: 1000}, engine.ConntrackFull},
			{&statusapi.Tracking{Entries: 999, Limit: 1000}, engine.ConntrackNearlyFull},
			{nil, ""}, // it cannot be read
		} {
			usage.Store(tt.usage)
			time.Sleep(conntrackInterval)
			synctest.Wait()
			if tt.want != "" {
				wantDoubt(t, e, tt.want, fmt.Sprintf("connection tracking has %d of at most 1000 entries", tt.usage.Entries))
			}
			for _, other := range []engine.DoubtKind{engine.ConntrackFull, engine.ConntrackNearlyFull} {
				if other != tt.want {
					wantNoDoubt(t, e, other)
				}
			}
		}
		stop()
	})
}

// TestSevereDoubtsComeFirst checks the order that the first line of status relies on.
func TestSevereDoubtsComeFirst(t *testing.T) {
	if !slices.IsSortedFunc(engine.DoubtKinds[:], func(a, b engine.DoubtKind) int {
		return cmp.Compare(map[bool]int{true: 0, false: 1}[a.Severe()], map[bool]int{true: 0, false: 1}[b.Severe()])
	}) {
		t.Errorf("%v: a warning comes before an error", engine.DoubtKinds)
	}
}

// TestUnknownNodeIsShown reads a folder with Nodes, none of which has the node's name,
// until one has.
func TestUnknownNodeIsShown(t *testing.T) {
	const object = "apiVersion: v1\nkind: Node\nmetadata: {name: %s}\n---\n"
	dir := t.TempDir()
	write := func(names ...string) {
		t.Helper()
		text := ""
		for _, name := range names {
			text += fmt.Sprintf(object, name)
		}
		file := filepath.Join(dir, "nodes.yaml")
		if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
			t.Fatal(err)
		}
	}
	write("e", "d", "c", "b")
	doubts := new(engine.Doubts)
	e := newEngine(watchedPlane{}, doubts)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- folderSource(dir).open("a", doubts, nil).Run(ctx, e) }()
	await := func(n float64) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); countDoubts(e, engine.NodeUnknown) != n; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("doubts %+v, want %v", doubts.All(), n)
			}
		}
	}
	await(1)
	wantDoubt(t, e, engine.NodeUnknown, "has Nodes (b, c, d and 1 more), and none is named a")
	write("b", "a")
	await(0)
	wantNoDoubt(t, e, engine.NodeUnknown)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

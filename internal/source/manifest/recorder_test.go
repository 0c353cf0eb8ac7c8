package manifest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sluice/internal/source/manifest"
)

// recorder is a Handler that writes down its calls, one line each.
type recorder struct {
	mu     sync.Mutex
	events []string
	known  map[string]string // Services by name
}

func (r *recorder) log(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

// take returns the lines since the last call.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.events
	r.events = nil
	return out
}

// learn returns what a Service was and what it is.
func (r *recorder) learn(s *v1.Service) (old, cur string) {
	if r.known == nil {
		r.known = map[string]string{}
	}
	old = r.known[s.Name]
	cur = fmt.Sprintf("%s %s:%d", s.Name, s.Spec.ClusterIP, s.Spec.Ports[0].Port)
	r.known[s.Name] = cur
	return old, cur
}

func (r *recorder) OnServiceUpdate(was, s *v1.Service) {
	if s == nil {
		r.log("-svc %s", r.known[was.Name])
		return
	}
	old, cur := r.learn(s)
	if was == nil {
		r.log("+svc %s", cur)
		return
	}
	if was.Name != s.Name || was.Namespace != s.Namespace {
		r.log("%s/%s became %s/%s", was.Namespace, was.Name, s.Namespace, s.Name)
	}
	r.log("~svc %s -> %s", old, cur)
}
func (r *recorder) OnServiceSynced() { r.log("synced svc") }

// hear writes down what happened to an object that is told by its name.
func hear[T interface {
	comparable
	metav1.Object
}](r *recorder, kind string, old, cur T) {
	var none T
	switch {
	case old == none:
		r.log("+%s %s", kind, cur.GetName())
	case cur == none:
		r.log("-%s %s", kind, old.GetName())
	default:
		r.log("~%s %s", kind, cur.GetName())
	}
}

func (r *recorder) OnEndpointSliceUpdate(old, cur *discoveryv1.EndpointSlice) {
	hear(r, "slice", old, cur)
}
func (r *recorder) OnEndpointSlicesSynced() { r.log("synced slice") }

func (r *recorder) OnNodeUpdate(old, cur *v1.Node) { hear(r, "node", old, cur) }
func (r *recorder) OnNodeSynced()                  { r.log("synced node") }

func (r *recorder) OnServiceCIDRUpdate(old, cur *networkingv1.ServiceCIDR) {
	hear(r, "cidr", old, cur)
}
func (r *recorder) OnServiceCIDRsSynced() { r.log("synced cidr") }

// problemLog is a log that writes down the problems in it.
type problemLog struct{ *recorder }

func (problemLog) Init(logr.RuntimeInfo)                  {}
func (problemLog) Enabled(int) bool                       { return true }
func (l problemLog) WithValues(...any) logr.LogSink       { return l }
func (l problemLog) WithName(string) logr.LogSink         { return l }
func (l problemLog) Error(_ error, msg string, kv ...any) { l.Info(0, msg, kv...) }

func (l problemLog) Info(_ int, msg string, kv ...any) {
	switch msg {
	case "Manifest problem", "Manifest note":
		l.log("%s", kv[1])
	case "Manifest problem is resolved":
		l.log("mended: %s", kv[1])
	default:
		l.log("%s %v", msg, kv)
	}
}

// watched is a folder with a source running over it.
type watched struct {
	*testing.T
	dir      string
	rec      *recorder
	problems *recorder
	stop     func() // ends the source and waits for it
}

func newWatched(t *testing.T, dir string) *watched {
	t.Helper()
	w := &watched{T: t, dir: dir, rec: &recorder{}, problems: &recorder{}}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.New(problemLog{w.problems})))
	src := manifest.Source{Dir: dir, NodeName: "here"}
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, w.rec) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *watched) path(name string) string { return filepath.Join(w.dir, name) }

func (w *watched) write(name, text string) {
	w.Helper()
	w.must(os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
	w.must(os.WriteFile(w.path(name), []byte(text), 0o644))
}

func (w *watched) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// events waits until the handler has been told exactly this.
func (w *watched) events(want ...string) {
	w.Helper()
	expect(w.T, w.rec, want)
}

// reports waits until exactly these problems have been reported.
func (w *watched) reports(want ...string) {
	w.Helper()
	expect(w.T, w.problems, want)
}

func expect(t *testing.T, rec *recorder, want []string) {
	t.Helper()
	deadline := time.After(5 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	got := rec.take()
	for len(got) < len(want) {
		select {
		case <-deadline:
			t.Fatalf("mismatch after a long wait (-want +got):\n%s", cmp.Diff(want, got))
		case <-tick.C:
			got = append(got, rec.take()...)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("mismatch (-want +got):\n%s", diff)
	}
}

// service returns a manifest of a Service.
func service(name, ip string, port int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: %s, ports: [{port: %d}]}\n",
		name, ip, port)
}

func documents(all ...string) string { return strings.Join(all, "---\n") }

// start runs a source over a folder with one Service in web.yaml.
func start(t *testing.T) *watched {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(service("web", "10.0.0.1", 80)), 0o644); err != nil {
		t.Fatal(err)
	}
	w := newWatched(t, dir)
	w.events(slices.Concat([]string{"+svc web 10.0.0.1:80"}, allSynced)...)
	return w
}

var allSynced = []string{"synced slice", "synced node", "synced svc", "synced cidr"}

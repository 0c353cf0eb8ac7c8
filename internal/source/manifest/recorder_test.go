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

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"sluice/internal/source/manifest"
	"sluice/internal/source/sourcetest"
)

// problemLog is a log that writes down the problems in it.
type problemLog struct{ *sourcetest.Recorder }

func (problemLog) Init(logr.RuntimeInfo)                  {}
func (problemLog) Enabled(int) bool                       { return true }
func (l problemLog) WithValues(...any) logr.LogSink       { return l }
func (l problemLog) WithName(string) logr.LogSink         { return l }
func (l problemLog) Error(_ error, msg string, kv ...any) { l.Info(0, msg, kv...) }

func (l problemLog) Info(_ int, msg string, kv ...any) {
	switch msg {
	case "Manifest problem", "Manifest note":
		l.Add(fmt.Sprint(kv[1]))
	case "Manifest problem is resolved":
		l.Add(fmt.Sprint("mended: ", kv[1]))
	default:
		l.Add(fmt.Sprint(msg, " ", kv))
	}
}

// watched is a folder with a source running over it.
type watched struct {
	*testing.T
	dir      string
	rec      sourcetest.Recorder
	problems sourcetest.Recorder
	stop     func() // ends the source and waits for it
}

func newWatched(t *testing.T, dir string) *watched {
	t.Helper()
	w := &watched{T: t, dir: dir}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.New(problemLog{&w.problems})))
	src := manifest.Source{Dir: dir, NodeName: "here"}
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, &w.rec) }()
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
	w.rec.Want(w.T, want...)
}

// reports waits until exactly these problems have been reported.
func (w *watched) reports(want ...string) {
	w.Helper()
	w.problems.Want(w.T, want...)
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

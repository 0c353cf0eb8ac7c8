package informer_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sluice/internal/source/informer"
	"sluice/internal/source/sourcetest"
)

// running is a source that runs until stop or the end of the test.
type running struct {
	rec  *sourcetest.Recorder
	logs func() string
	lost atomic.Pointer[[]informer.Lost] // what was reported last
	stop func()

	contacts informer.Contacts
}

func start(t *testing.T, client rest.Interface) *running {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	r := &running{rec: &sourcetest.Recorder{}, logs: func() string {
		return logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	}}
	r.contacts.Report = func(all []informer.Lost) { r.lost.Store(&all) }
	done := make(chan error, 1)
	go func() {
		done <- informer.New(client, "here", &r.contacts).Run(ctx, r.rec)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v, want nil", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// events waits until the handler has been told this, in any order: kinds are
// independent of each other.
func (r *running) events(t *testing.T, want ...string) {
	t.Helper()
	r.rec.WantInAnyOrder(t, want...)
}

var allSynced = []string{"synced node", "synced cidr", "synced svc", "synced slice"}

func service(name, ip string) object {
	return object{
		"metadata": object{
			"name": name, "namespace": "default",
			"managedFields": []object{{"manager": "m"}}, "annotations": object{"a": "b"},
		},
		"spec": object{"clusterIP": ip, "selector": object{"app": name}, "ports": []object{{"port": 80, "protocol": "TCP"}}},
	}
}

func TestRunSendsSelectors(t *testing.T) {
	s := newServer(t)
	r := start(t, s.client(t))
	r.events(t, allSynced...)
	for path, want := range map[string]url.Values{
		servicesPath: {
			"labelSelector": {"!service.kubernetes.io/service-proxy-name"}, "fieldSelector": {"spec.clusterIP!=None"},
		},
		slicesPath: {"labelSelector": {"!service.kubernetes.io/headless"}},
		nodesPath:  {"fieldSelector": {"metadata.name=here"}},
		cidrsPath:  {},
	} {
		all := s.asked(path)
		if len(all) == 0 {
			t.Errorf("%s was not asked for", path)
		}
		for _, got := range all {
			for _, key := range []string{"labelSelector", "fieldSelector"} {
				if diff := cmp.Diff(want[key], got[key]); diff != "" {
					t.Errorf("%s of %s mismatch (-want +got):\n%s", key, path, diff)
				}
			}
		}
	}
}

func TestRunDelivers(t *testing.T) {
	s := newServer(t)
	s.put(servicesPath, service("web", "10.0.0.1"))
	s.put(servicesPath, service("none", "None"))
	s.put(nodesPath, object{"metadata": object{"name": "here"}})
	s.put(nodesPath, object{"metadata": object{"name": "there"}})
	s.put(slicesPath, object{"metadata": object{"name": "web-1", "namespace": "default"}})
	s.put(cidrsPath, object{"metadata": object{"name": "k"}, "spec": object{"cidrs": []string{"10.96.0.0/16"}}})
	r := start(t, s.client(t))
	r.events(t, slices.Concat(allSynced, []string{
		"+svc web 10.0.0.1:80", "+node here", "+slice web-1", "+cidr k [10.96.0.0/16]",
	})...)

	s.put(servicesPath, service("web", "10.0.0.2"))
	r.events(t, "~svc web 10.0.0.1:80 -> web 10.0.0.2:80")
	s.put(servicesPath, service("none", "10.0.0.3"))
	r.events(t, "+svc none 10.0.0.3:80")
	other := service("web", "10.0.0.2")
	other["metadata"].(object)["labels"] = object{"service.kubernetes.io/service-proxy-name": "other"}
	s.put(servicesPath, other)
	r.events(t, "-svc web 10.0.0.2:80")
	s.remove(servicesPath, "none")
	r.events(t, "-svc none 10.0.0.3:80")
}

// TestContacts checks, in fake time, that each event and bookmark counts as contact with
// the server, for its resource only, and that a request which fails does not.
func TestContacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, client := newFaulty(t, 1)
		began := time.Now()
		f.refuse(cidrsPath, true)
		r := start(t, client)
		r.events(t, "synced node", "synced svc", "synced slice")
		ago := func() string {
			synctest.Wait()
			var out []string
			for resource, at := range r.contacts.Last() {
				out = append(out, fmt.Sprint(resource, " ", time.Since(at).Round(time.Second)))
			}
			slices.Sort(out)
			return strings.Join(out, ", ")
		}
		time.Sleep(time.Minute)
		f.put(servicesPath, service("web", "10.0.0.1"))
		synctest.Wait()
		time.Sleep(time.Second)
		f.bookmark(slicesPath)
		synctest.Wait()
		time.Sleep(time.Second)
		silent := time.Since(began).Round(time.Second)
		if got, want := ago(), fmt.Sprintf("endpointslices 1s, nodes %v, servicecidrs %[1]v, services 2s", silent); got != want {
			t.Errorf("last heard from the server: %s ago, want %s", got, want)
		}
		r.stop()
	})
}

// TestRunCompressed reads watches that are compressed as Kubernetes 1.37 does it: what is
// sent at once ends as a gzip file of its own.
func TestRunCompressed(t *testing.T) {
	s, compressed := newObjects(), atomic.Int64{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("sendInitialEvents") == "true" && r.Header.Get("Accept-Encoding") == "gzip" {
			compressed.Add(1)
			w.Header().Set("Content-Encoding", "gzip")
			w = &compressor{ResponseWriter: w}
		}
		s.serve(w, r)
	}))
	t.Cleanup(func() {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		s.Close()
	})
	s.put(servicesPath, service("web", "10.0.0.1"))
	r := start(t, s.client(t))
	r.events(t, slices.Concat(allSynced, []string{"+svc web 10.0.0.1:80"})...)
	s.put(servicesPath, service("web", "10.0.0.2"))
	r.events(t, "~svc web 10.0.0.1:80 -> web 10.0.0.2:80")
	s.remove(servicesPath, "web")
	r.events(t, "-svc web 10.0.0.2:80")
	if n := compressed.Load(); n != 4 {
		t.Errorf("%d watches were compressed, want one of each kind", n)
	}
}

// compressor compresses what is written until each Flush.
type compressor struct {
	http.ResponseWriter
	to *gzip.Writer
}

func (c *compressor) Write(text []byte) (int, error) {
	if c.to == nil {
		c.to = gzip.NewWriter(c.ResponseWriter)
	}
	return c.to.Write(text)
}

func (c *compressor) Flush() {
	if c.to != nil {
		_ = c.to.Flush()
		_ = c.to.Close()
		c.to = nil
	}
	c.ResponseWriter.(http.Flusher).Flush()
}

func TestRunMissedDeletion(t *testing.T) {
	s := newServer(t)
	s.put(servicesPath, service("web", "10.0.0.1"))
	s.put(servicesPath, service("db", "10.0.0.2"))
	r := start(t, s.client(t))
	r.events(t, slices.Concat(allSynced, []string{"+svc web 10.0.0.1:80", "+svc db 10.0.0.2:80"})...)
	s.lose(servicesPath, "web")
	r.events(t, "-svc web 10.0.0.1:80")
	if strings.Contains(r.logs(), "Watch failed") {
		t.Errorf("an expired watch, which is part of life, was logged:\n%s", r.logs())
	}
}

func TestRunForbidden(t *testing.T) {
	s := newServer(t)
	s.put(slicesPath, object{"metadata": object{"name": "web-1", "namespace": "default"}})
	s.refuse(slicesPath, true)
	r := start(t, s.client(t))
	r.events(t, "synced node", "synced cidr", "synced svc")
	sourcetest.Poll(t, "a second try", func() bool { return len(s.asked(slicesPath)) > 2 && strings.Contains(r.logs(), trouble) })
	s.refuse(slicesPath, false)
	r.events(t, "+slice web-1", "synced slice")
	logs := r.logs()
	if strings.Count(logs, trouble) != 1 {
		t.Errorf("the same trouble was logged %d times, want once:\n%s", strings.Count(logs, trouble), logs)
	}
	const rule = `{apiGroups: [\"discovery.k8s.io\"], resources: [\"endpointslices\"], verbs: [list, watch]}`
	if !strings.Contains(logs, rule) || !strings.Contains(logs, `resource="endpointslices"`) {
		t.Errorf("the log does not name the resource and the rule that is missing:\n%s", logs)
	}
}

const trouble = "Watch failed and is retried, the last known objects stay in force"

func TestRunServerIsDown(t *testing.T) {
	s := newServer(t)
	client := s.client(t)
	s.Close()
	r := start(t, client)
	checkUnreachable(t, r, "nodes", "services", "endpointslices", "servicecidrs")
	if got := r.rec.Take(); len(got) > 0 {
		t.Errorf("the handler was told %v though there is no server", got)
	}
}

func TestRunServerGoesDown(t *testing.T) {
	s := newServer(t)
	s.put(servicesPath, service("web", "10.0.0.1"))
	r := start(t, s.client(t))
	r.events(t, slices.Concat(allSynced, []string{"+svc web 10.0.0.1:80"})...)
	// A watch that has seen an event is taken up again without a list; that is
	// where an informer is silent.
	s.put(servicesPath, service("db", "10.0.0.2"))
	r.events(t, "+svc db 10.0.0.2:80")
	if err := s.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	s.CloseClientConnections()
	checkUnreachable(t, r, "services")
	if got := r.rec.Take(); len(got) > 0 {
		t.Errorf("the handler was told %v because the server went away", got)
	}
}

// checkUnreachable waits for a line about each resource, and checks that Run
// ends at once nevertheless.
func checkUnreachable(t *testing.T, r *running, resources ...string) {
	t.Helper()
	for _, resource := range resources {
		sourcetest.Poll(t, "a line about "+resource, func() bool {
			return slices.ContainsFunc(strings.Split(r.logs(), "\n"), func(line string) bool {
				return strings.Contains(line, trouble) && strings.Contains(line, "refused") &&
					strings.Contains(line, fmt.Sprintf("resource=%q", resource))
			})
		})
	}
	began := time.Now()
	r.stop()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Run went on for %v after its context had ended", took)
	}
}

func TestRunStops(t *testing.T) {
	s := newServer(t)
	r := start(t, s.client(t))
	r.events(t, allSynced...)
	for i := range 50 {
		s.put(servicesPath, service(fmt.Sprintf("svc-%d", i), "10.0.0.1"))
	}
	r.stop()
	r.rec.Take()
	s.put(servicesPath, service("late", "10.0.0.1"))
	if got := r.rec.Take(); len(got) > 0 {
		t.Errorf("the handler was told %v after Run had returned", got)
	}
}

func TestRunStopsBeforeItHasSynced(t *testing.T) {
	s := newServer(t)
	for _, path := range []string{servicesPath, slicesPath, nodesPath, cidrsPath} {
		s.refuse(path, true)
	}
	r := start(t, s.client(t))
	sourcetest.Poll(t, "a request", func() bool { return len(s.asked(servicesPath)) > 0 })
	r.stop()
	if got := r.rec.Take(); len(got) > 0 {
		t.Errorf("the handler was told %v though the server refused everything", got)
	}
}

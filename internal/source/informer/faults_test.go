package informer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"sluice/internal/apiclient"
	"sluice/internal/conformance/reliability"
	"sluice/internal/source/informer"
)

// serverFaults are what an API server, or whatever is between it and us, may do to
// a request.
var serverFaults = map[string]func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc){
	"internal error": func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
		refuse(w, http.StatusInternalServerError, "InternalError")
	},
	"too many requests": func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, "TooManyRequests")
	},
	"gone": func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
		refuse(w, http.StatusGone, "Expired")
	},
	"error in the watch": func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		if r.URL.Query().Get("watch") != "true" {
			next(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object{"type": "ERROR", "object": status(http.StatusInternalServerError, "InternalError")})
	},
	"connection cut before the answer": func(http.ResponseWriter, *http.Request, http.HandlerFunc) {
		panic(http.ErrAbortHandler)
	},
	"connection cut in the middle": func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		next(&limited{ResponseWriter: w, left: 300, end: func() { panic(http.ErrAbortHandler) }}, r)
	},
	"slow": func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		next(&limited{ResponseWriter: w, end: func() { time.Sleep(5 * time.Second) }}, r)
	},
	"stuck": func(_ http.ResponseWriter, r *http.Request, _ http.HandlerFunc) { <-r.Context().Done() },
	"stuck in the middle": func(w http.ResponseWriter, r *http.Request, next http.HandlerFunc) {
		next(&limited{ResponseWriter: w, left: 300, end: func() { <-r.Context().Done() }}, r)
	},
	"another server": func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
		fmt.Fprint(w, "<html>Welcome</html>")
	},
	"an empty answer": func(w http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, "{}")
	},
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status(code, reason))
}

// limited calls end before each write when so many bytes have been written.
type limited struct {
	http.ResponseWriter
	left int
	end  func()
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left < len(b) {
		n, _ := l.ResponseWriter.Write(b[:l.left])
		l.Flush()
		l.left, b = 0, b[n:]
		l.end()
	} else {
		l.left -= len(b)
	}
	_, err := l.ResponseWriter.Write(b)
	return len(b), err
}

func (l *limited) Flush() { l.ResponseWriter.(http.Flusher).Flush() }

// faulty is a server that lets requests suffer, in fake time.
type faulty struct {
	*server

	mu     sync.Mutex
	faults []string
	share  float64
	spite  *rand.Rand
	struck int
	conns  chan net.Conn

	changes *rand.Rand // of objects
}

// newFaulty returns a server and its client. They talk in memory, as fake time does
// not pass while a network is waited for.
func newFaulty(t *testing.T, seed uint64) (*faulty, rest.Interface) {
	t.Helper()
	f := &faulty{
		server: newObjects(), conns: make(chan net.Conn),
		spite: rand.New(rand.NewPCG(seed, 0)), changes: rand.New(rand.NewPCG(seed, 1)),
	}
	serving := &http.Server{Handler: f}
	transport := &http.Transport{DialContext: f.dial}
	client, err := apiclient.New(&rest.Config{Host: "http://server", QPS: -1, Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = serving.Serve(f) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = serving.Close()
		time.Sleep(time.Minute) // so that slow answers end
	})
	return f, client
}

func (f *faulty) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case f.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept, Close and Addr make it a listener.
func (f *faulty) Accept() (net.Conn, error) {
	c, ok := <-f.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (f *faulty) Close() error   { close(f.conns); return nil }
func (f *faulty) Addr() net.Addr { return &net.UnixAddr{} }

// suffer lets a share of the requests have one of some faults from now on.
func (f *faulty) suffer(share float64, faults ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.share, f.faults = share, faults
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	fault := ""
	if f.spite.Float64() < f.share {
		fault = f.faults[f.spite.IntN(len(f.faults))]
		f.struck++
	}
	f.mu.Unlock()
	if fault == "" {
		f.serve(w, r)
		return
	}
	f.server.mu.Lock()
	f.requests[r.URL.Path] = append(f.requests[r.URL.Path], r.URL.Query())
	f.server.mu.Unlock()
	serverFaults[fault](w, r, f.serve)
}

// names are those that a handler was told of, or that a server has.
func (f *faulty) names() (all []string) {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	for name, o := range f.objects[servicesPath] {
		all = append(all, fmt.Sprintf("svc %s %s:80", name, o["spec"].(object)["clusterIP"]))
	}
	for name := range f.objects[slicesPath] {
		all = append(all, "slice "+name)
	}
	slices.Sort(all)
	return all
}

// recovery is how long after all faults everything is known at the latest: as long
// as a request may be left unanswered.
const recovery = 15 * time.Minute

// TestServerSuffers changes objects for half an hour while half of the requests have
// faults. What is there all the time is never believed to be gone, and in the end
// everything is known.
func TestServerSuffers(t *testing.T) {
	faults := slices.Sorted(maps.Keys(serverFaults))
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, client := newFaulty(t, seed)
				f.suffer(.5, faults...)
				for i := range 10 {
					f.put(servicesPath, service(fmt.Sprintf("still-%d", i), "10.0.0.1"))
				}
				r := start(t, client)
				for range 600 {
					f.change()
					time.Sleep(time.Duration(f.changes.IntN(6000)) * time.Millisecond)
					for _, e := range r.rec.Take() {
						if strings.HasPrefix(e, "-svc still") {
							t.Errorf("believed to be gone: %s", e)
						}
					}
				}
				f.suffer(0)
				ended := time.Now()
				for time.Since(ended) < recovery && !slices.Equal(r.rec.Known(), f.names()) {
					time.Sleep(time.Second)
				}
				if diff := cmp.Diff(f.names(), r.rec.Known()); diff != "" {
					t.Errorf("in the end (-there +known):\n%s", diff)
				}
				r.stop()
				reliability.Record(t, reliability.Result{
					Fault: "API server fails requests", Mode: "any", Tried: f.struck, Repairs: []time.Duration{time.Since(ended)},
					Note: "a half of all requests: errors, 410, 429, cut, slow and stuck answers; in fake time",
				})
			})
		})
	}
}

// change lets something happen to an object, or to what the server remembers.
func (f *faulty) change() {
	i := f.changes.IntN(10)
	name := fmt.Sprintf("svc-%d", i)
	slice := object{"metadata": object{"name": fmt.Sprintf("slice-%d", i), "namespace": "default"}}
	f.server.mu.Lock()
	has, hasSlice := f.objects[servicesPath][name] != nil, f.objects[slicesPath][nameOf(slice)] != nil
	f.server.mu.Unlock()
	switch f.changes.IntN(5) {
	case 0:
		if has {
			f.remove(servicesPath, name)
		}
	case 1:
		if has {
			f.lose(servicesPath, name)
		}
	case 2:
		if hasSlice {
			f.remove(slicesPath, nameOf(slice))
		}
	case 3:
		f.put(slicesPath, slice)
	default:
		f.put(servicesPath, service(name, fmt.Sprintf("10.0.1.%d", f.changes.IntN(200))))
	}
}

// TestFailingServerIsSpared has each fault happen to every request for an hour. The
// server is not asked without end, and once it answers everything is known.
func TestFailingServerIsSpared(t *testing.T) {
	for fault := range serverFaults {
		t.Run(fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, client := newFaulty(t, 1)
				f.suffer(1, fault)
				f.put(servicesPath, service("web", "10.0.0.1"))
				r := start(t, client)
				time.Sleep(time.Hour)
				n := len(f.asked(servicesPath))
				lines := strings.Count(r.logs(), trouble)
				t.Logf("%d requests in an hour, %d lines about it", n, lines)
				if n > 900 || lines > 4*70 {
					t.Error("that is too much")
				}
				f.suffer(0)
				began := time.Now()
				for time.Since(began) < recovery && len(r.rec.Known()) == 0 {
					time.Sleep(time.Second)
				}
				if len(r.rec.Known()) != 1 {
					t.Errorf("after %v nothing is known", time.Since(began))
				}
				r.stop()
			})
		})
	}
}

// TestLostServerIsReported has every fault by which nothing is heard from the server
// happen for an hour, before the first list and after it. The report has since when,
// when the server was last heard from, and why; it is empty once the server answers.
func TestLostServerIsReported(t *testing.T) {
	for fault, why := range map[string]string{
		"internal error": "", "connection cut before the answer": "", "stuck": "does not answer", "another server": "",
	} {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, early %t", fault, early), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, client := newFaulty(t, 1)
					if early {
						f.suffer(1, fault)
					}
					r := start(t, client)
					lost := func() []informer.Lost { return ptr.Deref(r.lost.Load(), nil) }
					time.Sleep(time.Minute)
					if !early {
						if all := lost(); len(all) > 0 {
							t.Errorf("from a server that answers %+v are lost", all)
						}
						f.suffer(1, fault)
						f.put(servicesPath, service("web", "10.0.0.1"))
					}
					began := time.Now()
					time.Sleep(time.Hour)
					all := lost()
					if len(all) != 4 {
						t.Fatalf("%+v are lost, want four kinds", all)
					}
					for i, l := range all {
						// A watch that is open is noticed to be useless when it ends, after ten minutes at most.
						if !strings.Contains(l.Reason, why) || l.Since.After(began.Add(11*time.Minute)) || l.Heard.IsZero() != early || i > 0 && l.Resource < all[i-1].Resource {
							t.Errorf("%+v, want the reason %q, a beginning and when it was last heard from", l, why)
						}
					}
					f.suffer(0)
					time.Sleep(recovery)
					if all := lost(); len(all) > 0 {
						t.Errorf("after the server is back %+v are lost", all)
					}
					r.stop()
				})
			})
		}
	}
}

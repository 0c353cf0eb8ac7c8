package informer_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/conformance/reliability"
	"sluice/internal/source/informer"
	"sluice/internal/source/sourcetest"
)

// floodMegabytes is how much TestWatchFlood sends.
var floodMegabytes = flag.Int("flood", 16, "TestWatchFlood sends so many megabytes of events")

// flood is a server that sends EndpointSlices as fast as they are taken.
type flood struct {
	*server
	events []string     // of two generations, in turn
	sent   atomic.Int64 // bytes
	told   atomic.Int64 // events
	done   atomic.Bool
}

func newFlood(t *testing.T) *flood {
	t.Helper()
	f := &flood{server: newObjects()}
	for generation := range 2 {
		var endpoints []object
		for i := range 1000 {
			endpoints = append(endpoints, object{"addresses": []string{fmt.Sprintf("10.%d.%d.%d", generation, i>>8, i&255)}, "nodeName": strings.Repeat("n", 63)})
		}
		slice := typed(slicesPath, object{
			"metadata":    object{"name": "large-1", "namespace": "ns", "resourceVersion": "2", "labels": object{discoveryv1.LabelServiceName: "large"}},
			"addressType": "IPv4", "endpoints": endpoints,
		})
		text, err := json.Marshal(object{"type": "MODIFIED", "object": slice})
		if err != nil {
			t.Fatal(err)
		}
		f.events = append(f.events, string(text)+"\n")
	}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		f.Close()
	})
	return f
}

func (f *flood) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != slicesPath || r.URL.Query().Get("watch") != "true" || r.URL.Query().Get("sendInitialEvents") != "true" {
		f.server.serve(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	mark := object{"resourceVersion": "1", "annotations": object{"k8s.io/initial-events-end": "true"}}
	_ = json.NewEncoder(w).Encode(object{"type": "BOOKMARK", "object": typed(slicesPath, object{"metadata": mark})})
	for n := 0; f.sent.Load() < int64(*floodMegabytes)<<20; n++ {
		event := strings.Replace(f.events[n%len(f.events)], `"resourceVersion":"2"`, fmt.Sprintf(`"resourceVersion":"%d"`, 2+n), 1)
		if _, err := w.Write([]byte(event)); err != nil {
			return
		}
		f.sent.Add(int64(len(f.events[0])))
		f.told.Add(1)
	}
	w.(http.Flusher).Flush()
	f.done.Store(true)
	<-r.Context().Done()
}

// slow is a handler that takes slices only while it may, and samples the heap.
type slow struct {
	*sourcetest.Recorder
	may   chan struct{} // closed when it may
	taken atomic.Int64
	heap  atomic.Uint64 // the most that was in use
}

func (s *slow) OnEndpointSliceUpdate(_, _ *discoveryv1.EndpointSlice) {
	<-s.may
	if s.taken.Add(1)%20 == 0 {
		s.heap.Store(max(s.heap.Load(), heapInUse()))
	}
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// TestWatchFlood has an API server send far more than there is room for. While nobody
// takes it, the server waits; what is held then is bounded, whatever is still to come.
func TestWatchFlood(t *testing.T) {
	const room = 12 << 20 // for what is in sockets and under way, in bytes
	f := newFlood(t)
	s := &slow{Recorder: &sourcetest.Recorder{}, may: make(chan struct{})}
	before := heapInUse()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- informer.New(f.client(t), "here", &informer.Contacts{}).Run(ctx, s) }()
	var last int64
	since := time.Now()
	sourcetest.Poll(t, "a server that waits", func() bool {
		if now := f.sent.Load(); now != last {
			last, since = now, time.Now()
		}
		return last > 0 && time.Since(since) > 500*time.Millisecond
	})
	if last > room || f.done.Load() {
		t.Errorf("%d bytes were sent to who takes nothing; want at most %d", last, room)
	}
	began := time.Now()
	close(s.may)
	for all := false; !all; {
		n := s.taken.Load()
		sourcetest.Poll(t, "the next event", func() bool {
			all = f.done.Load() && s.taken.Load() == f.told.Load()
			return all || s.taken.Load() > n
		})
	}
	took := time.Since(began)
	if most := s.heap.Load(); most > before+3*room {
		t.Errorf("the heap grew from %d bytes to %d", before, most)
	}
	reliability.Record(t, reliability.Result{
		Fault: "flood of EndpointSlice events", Mode: "any", Tried: 1,
		Note: fmt.Sprintf("%d MB in %v; %d MB were under way while none was taken, the heap grew by at most %d MB",
			f.sent.Load()>>20, took.Round(10*time.Millisecond), last>>20, (s.heap.Load()-min(before, s.heap.Load()))>>20),
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

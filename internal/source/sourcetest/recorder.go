package sourcetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Recorder is a handler that writes down its calls, one line each, with what was last told of an
// object: "+svc web 10.0.0.1:80", "~svc web 10.0.0.1:80 -> web 10.0.0.1:81", "-slice web-1",
// "synced node".
type Recorder struct {
	mu    sync.Mutex
	lines []string
	known map[string]string // the text of each object
}

// Add writes down a line.
func (r *Recorder) Add(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

// Take returns the lines since the last call.
func (r *Recorder) Take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

// Known returns what the handler knows of objects, sorted: "slice web-1", "svc web 10.0.0.1:80".
func (r *Recorder) Known() (known []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, text := range r.known {
		known = append(known, text)
	}
	slices.Sort(known)
	return known
}

// Want waits until there are as many lines as are wanted, and compares them.
func (r *Recorder) Want(t testing.TB, want ...string) {
	t.Helper()
	if got := r.await(t, want); !slices.Equal(got, want) {
		t.Fatalf("told %q\nwant %q", got, want)
	}
}

// WantInAnyOrder is Want for kinds that are independent of each other.
func (r *Recorder) WantInAnyOrder(t testing.TB, want ...string) {
	t.Helper()
	got := slices.Sorted(slices.Values(r.await(t, want)))
	if want = slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
		t.Fatalf("told %q\nwant %q, in any order", got, want)
	}
}

func (r *Recorder) await(t testing.TB, want []string) (got []string) {
	t.Helper()
	Poll(t, fmt.Sprintf("%q", want), func() bool {
		got = append(got, r.Take()...)
		return len(got) >= len(want)
	})
	return got
}

// Poll asks again and again until the answer is yes.
func Poll(t testing.TB, what string, yes func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !yes() {
		select {
		case <-deadline:
			t.Fatalf("%s did not come", what)
		case <-tick.C:
		}
	}
}

// update writes down what happened to an object. Of what it was, only the name is known.
func update[T interface {
	comparable
	metav1.Object
}](r *Recorder, kind string, old, cur T, text func(T) string) {
	var none T
	key := func(o T) string { return kind + " " + o.GetNamespace() + "/" + o.GetName() }
	r.mu.Lock()
	defer r.mu.Unlock()
	if cur == none {
		r.lines = append(r.lines, "-"+r.known[key(old)])
		delete(r.known, key(old))
		return
	}
	is := kind + " " + text(cur)
	was := r.known[key(cur)]
	line := "~" + was
	switch {
	case old == none:
		line = "+" + is
	case key(old) != key(cur):
		line = key(old) + " became " + key(cur)
	case was != is:
		line += " -> " + text(cur)
	}
	r.lines = append(r.lines, line)
	if r.known == nil {
		r.known = map[string]string{}
	}
	r.known[key(cur)] = is
}

func (r *Recorder) OnServiceUpdate(old, cur *v1.Service) {
	update(r, "svc", old, cur, func(s *v1.Service) string {
		text := s.Name + " " + s.Spec.ClusterIP
		for _, p := range s.Spec.Ports {
			text += fmt.Sprintf(":%d", p.Port)
		}
		return text
	})
}

func (r *Recorder) OnEndpointSliceUpdate(old, cur *discoveryv1.EndpointSlice) {
	update(r, "slice", old, cur, (*discoveryv1.EndpointSlice).GetName)
}

func (r *Recorder) OnNodeUpdate(old, cur *v1.Node) {
	update(r, "node", old, cur, (*v1.Node).GetName)
}

func (r *Recorder) OnServiceCIDRUpdate(old, cur *networkingv1.ServiceCIDR) {
	update(r, "cidr", old, cur, func(c *networkingv1.ServiceCIDR) string { return fmt.Sprint(c.Name, " ", c.Spec.CIDRs) })
}

func (r *Recorder) OnServiceSynced()        { r.Add("synced svc") }
func (r *Recorder) OnEndpointSlicesSynced() { r.Add("synced slice") }
func (r *Recorder) OnNodeSynced()           { r.Add("synced node") }
func (r *Recorder) OnServiceCIDRsSynced()   { r.Add("synced cidr") }

package resolve

import (
	"testing"

	"sluice/internal/proxy"
)

// TestTrackersMerge lets several events of an object be one change.
func TestTrackersMerge(t *testing.T) {
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1"))
	published := rowNamed(t, r.State(), "ns/web:http/TCP/IPv4")
	a, b := serviceOf("ns/web", "10.96.0.2"), serviceOf("ns/web", "10.96.0.3")
	r.Services.Update(serviceOf("ns/web", "10.96.0.1"), a)
	r.Services.Update(a, b)
	d := r.Update()
	if len(d.Upserts) != 1 || len(d.Removes) != 0 {
		t.Fatalf("step %+v; want one row", d)
	}
	u := d.Upserts[0]
	if u.Old != published || u.New.Frontends[0].Addr != addrPort("10.96.0.3:80") {
		t.Errorf("from %v to %v; want the published row and the last address", u.Old, u.New)
	}
	if rowNamed(t, r.State(), "ns/web:http/TCP/IPv4") != u.New {
		t.Errorf("the state does not hold the row of the step")
	}
}

// TestTrackersForget has nothing pending when events cancel out.
func TestTrackersForget(t *testing.T) {
	web, slice := serviceOf("ns/web", "10.96.0.1"), sliceOf("ns/s", "web", endpointOf("10.1.0.1"))
	r := resolverOf(t, web, slice)
	other, otherSlice := serviceOf("ns/other", "10.96.0.9"), sliceOf("ns/o", "web", endpointOf("10.1.0.9"))
	steps := []struct {
		name    string
		do      func() bool
		pending bool
	}{
		{"Service added", func() bool { return r.Services.Update(nil, other) }, true},
		{"and deleted", func() bool { return r.Services.Update(other, nil) }, false},
		{"Service deleted", func() bool { return r.Services.Update(web, nil) }, true},
		{"and added", func() bool { return r.Services.Update(nil, web) }, false},
		{"slice added", func() bool { return r.Endpoints.Update(otherSlice, false) }, true},
		{"and deleted", func() bool { return r.Endpoints.Update(otherSlice, true) }, false},
		{"slice deleted", func() bool { return r.Endpoints.Update(slice, true) }, true},
		{"and added", func() bool { return r.Endpoints.Update(slice, false) }, false},
		{"unknown Service deleted", func() bool { return r.Services.Update(other, nil) }, false},
		{"no Service", func() bool { return r.Services.Update(nil, nil) }, false},
		{"no slice", func() bool { return r.Endpoints.Update(nil, true) }, false},
	}
	for _, step := range steps {
		if got := step.do(); got != step.pending {
			t.Errorf("%s: pending %t; want %t", step.name, got, step.pending)
		}
	}
	if d := r.Update(); !d.Empty() {
		t.Errorf("step %+v; want none", d)
	}
}

// TestObjectsAreNotKept changes objects after they were handed over.
func TestObjectsAreNotKept(t *testing.T) {
	r := New(Settings{NodeName: testNode})
	web := serviceOf("ns/web", "10.96.0.1", externalIPs("192.0.2.1"))
	slice := sliceOf("ns/s", "web", endpointOf("10.1.0.1", zones("z1")))
	add(t, r, web, slice)
	web.Spec.ExternalIPs[0] = "192.0.2.2"
	web.Spec.Ports[0].Port = 99
	slice.Endpoints[0].Addresses[0] = "10.1.0.2"
	*slice.Ports[0].Port = 99
	r.Update()
	wantState(t, r, []string{
		"ns/web:http/TCP/IPv4 ClusterIP=10.96.0.1:80 ExternalIP=192.0.2.1:80 internal=Cluster external=Cluster " +
			"anywhere=true cluster=[10.1.0.1:8080] local=[]",
	}, nil)
}

// TestSlicesBeforeService works in whatever order objects come, and forgets
// what is gone.
func TestSlicesBeforeService(t *testing.T) {
	r := resolverOf(t, sliceOf("ns/s", "web", endpointOf("10.1.0.1")))
	if n := len(r.State().Rows); n != 0 {
		t.Fatalf("%d rows without a Service", n)
	}
	web := serviceOf("ns/web", "10.96.0.1")
	add(t, r, web)
	d := r.Update()
	if len(d.Upserts) != 1 || len(d.Upserts[0].New.Cluster) != 1 || d.Upserts[0].Old != nil {
		t.Fatalf("step %+v; want a new row with an endpoint", d)
	}
	remove(t, r, web)
	if d := r.Update(); len(d.Removes) != 1 || len(r.State().Rows) != 0 {
		t.Errorf("step %+v; want the row removed", d)
	}
	remove(t, r, sliceOf("ns/s", "web"))
	r.Update()
	if len(r.entries) != 0 {
		t.Errorf("%d entries are kept of nothing", len(r.entries))
	}
}

// TestDeltaIsSorted gives steps an order of their own.
func TestDeltaIsSorted(t *testing.T) {
	r := New(Settings{NodeName: testNode})
	add(t, r, serviceOf("b/x", "10.96.0.2"), serviceOf("a/y", "10.96.0.3"), serviceOf("a/x", "10.96.0.1"))
	var got []string
	d := r.Update()
	for _, u := range d.Upserts {
		got = append(got, u.New.Key.Namespace+"/"+u.New.Key.Name)
	}
	if len(got) != 3 || got[0] != "a/x" || got[1] != "a/y" || got[2] != "b/x" {
		t.Errorf("order %v; want a/x, a/y, b/x", got)
	}
	follower := proxy.NewState()
	follower.Apply(d)
	if follower.String() != r.State().String() {
		t.Errorf("follower\n%vstate\n%v", follower, r.State())
	}
}

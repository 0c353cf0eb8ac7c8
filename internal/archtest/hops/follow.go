package hops

import (
	"context"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/source"
)

// Follow replaces an endpoint of a Service that a dataplane of a mode serves, and checks that the
// event takes the hops that ARCHITECTURE.md lists for the mode, in that order. A test process
// can follow one mode only: the memory profile has each call stack once, where it was first seen.
func Follow(t *testing.T, mode string, d proxy.Dataplane) {
	t.Helper()
	text, err := os.ReadFile("../../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	lists, err := Lists(string(text))
	if err != nil {
		t.Fatal(err)
	}
	listed := lists[mode]
	if listed == nil {
		t.Fatalf("ARCHITECTURE.md lists no hops of mode %s", mode)
	}
	stacks := slices.DeleteFunc(followed(t, d), func(s stack) bool { return !s.ofEvent() })
	if wrong := compare(listed, stacks); wrong != "" {
		t.Errorf("ARCHITECTURE.md lists for mode %s: %s; but %s.\nThe event enters, in this order: %s",
			mode, strings.Join(listed, ", "), wrong, strings.Join(entered(stacks), ", "))
	}
}

// ofEvent reports whether the stack is of a goroutine that carries the event, not of one that a
// dataplane has for other work.
func (s stack) ofEvent() bool {
	return slices.ContainsFunc(s, func(f call) bool { return f.pkg == "source" || f.pkg == "runner" })
}

// followed returns the call stacks of the event.
func followed(t *testing.T, d proxy.Dataplane) []stack {
	t.Helper()
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 0 // the syncs before the event take the same way
	o := &observer{done: make(chan engine.Result, 1)}
	e := engine.New(engine.Settings{Dataplane: d, Resolver: resolve.New(resolve.Settings{NodeName: "here"}), Observer: o})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- e.SyncLoop(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	await := func() {
		t.Helper()
		select {
		case r := <-o.done:
			if r.Err != nil || r.Refusals {
				t.Fatalf("refused %t, error %v", r.Refusals, r.Err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the sync does not end")
		}
	}
	endpointSlices := source.NewEndpointSliceConfig(e)
	services := source.NewServiceConfig(e)
	services.Set(theService())
	endpointSlices.Set(theSlice("10.0.0.1"))
	services.Synced()
	endpointSlices.Synced()
	source.NewNodeConfig("here", e).Synced()
	await()
	return trace(func() {
		endpointSlices.Set(theSlice("10.0.0.2"))
		await()
	})
}

// observer passes on the result of each sync that changed a row or failed.
type observer struct {
	done chan engine.Result
}

func (o *observer) Done(_ context.Context, r engine.Result) {
	if r.Err != nil || len(r.Changed.Upserts) > 0 {
		select {
		case o.done <- r:
		default: // the test has failed with the result that it has not yet read
		}
	}
}

func (o *observer) Queued()                                                  {}
func (o *observer) ServiceSeen(int)                                          {}
func (o *observer) NodeSeen(*v1.Node)                                        {}
func (o *observer) Repairing()                                               {}
func (o *observer) EndpointSliceSeen(_, _ *discoveryv1.EndpointSlice, _ int) {}
func (o *observer) Began(*proxy.Delta)                                       {}

func theService() *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: v1.ServiceSpec{
			ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
}

func theSlice(address string) *discoveryv1.EndpointSlice {
	port, name, tcp := int32(8080), "", v1.ProtocolTCP
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
	}
}

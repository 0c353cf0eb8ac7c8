//go:build linux

package main

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/resolve"
)

// measureResolver measures the resolver's heap, and the cost of one changed slice with two numbers
// of Services and beside slices with problems.
func measureResolver(_ context.Context, r *report) error {
	const small, large, limit = 1_000, 30_000, 150 << 20
	before := heap()
	res := newResolver(large)
	grown := heap() - before
	r.add(fmt.Sprintf("the resolver's heap at %d x %d", large, endpointsPerService), fmt.Sprintf("%d MiB", grown>>20), "under 150 MiB", grown < limit)
	at := map[int]float64{large: allocsPerRun(replacer(res))}
	res = newResolver(small)
	replace := replacer(res)
	at[small] = allocsPerRun(replace)
	r.add(fmt.Sprintf("allocations for one changed slice at %d and %d Services", small, large), fmt.Sprintf("%.0f and %.0f", at[small], at[large]), "the same", at[large] <= at[small]*1.1+2)
	const problems = 10_000
	alone, aloneTook := at[small], timePerRun(replace)
	addProblems(res, problems)
	beside, besideTook := allocsPerRun(replace), timePerRun(replace)
	r.add(fmt.Sprintf("endpoint change beside %d problem slices, and beside none: allocations", problems), fmt.Sprintf("%.0f and %.0f", beside, alone), "the same", beside <= alone+2)
	r.note("... time in the resolver", fmt.Sprintf("%v and %v", besideTook.Round(time.Microsecond), aloneTook.Round(time.Microsecond)))
	return nil
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func newResolver(services int) *resolve.Resolver {
	res := resolve.New(resolve.Settings{NodeName: "node"})
	for i := range services {
		res.Services.Update(nil, serviceObject(i))
		res.Endpoints.Update(sliceObject(i, i*16), false)
	}
	res.Update()
	return res
}

// addProblems adds slices of other Services with an invalid address.
func addProblems(res *resolve.Resolver, slices int) {
	for i := range slices {
		s := sliceObject(100_000+i, 0)
		s.Endpoints = s.Endpoints[:1]
		s.Endpoints[0].Addresses = []string{"10.0.0.300"}
		res.Endpoints.Update(s, false)
	}
	res.Update()
	if found, _ := res.TakeProblems(); len(found) != slices {
		panic(fmt.Sprintf("%d bad slices have %d problems", slices, len(found)))
	}
}

// replacer returns a function that replaces one endpoint each time it is called.
func replacer(res *resolve.Resolver) func() {
	slices := []*discoveryv1.EndpointSlice{sliceObject(7, 1<<22), sliceObject(7, 7*16)}
	k := 0
	return func() {
		res.Endpoints.Update(slices[k%2], false)
		if d := res.Update(); len(d.Upserts) != 1 {
			panic(fmt.Sprintf("one changed slice gave %d changed rows", len(d.Upserts)))
		}
		res.TakeProblems()
		k++
	}
}

func allocsPerRun(replace func()) float64 { return testing.AllocsPerRun(200, replace) }

func timePerRun(replace func()) time.Duration {
	const rounds = 2_000
	begin := time.Now()
	for range rounds {
		replace()
	}
	return time.Since(begin) / rounds
}

func serviceObject(i int) *v1.Service {
	addr := address(172<<24|16<<16, i, 80).Addr().String()
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: addr, ClusterIPs: []string{addr}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
}

func sliceObject(i, first int) *discoveryv1.EndpointSlice {
	name, port, proto := "http", int32(8080), v1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("svc-%d-a", i),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("svc-%d", i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}
	for e := range endpointsPerService {
		at := i*16 + e
		if e == 0 {
			at = first
		}
		ready, node := true, fmt.Sprintf("node-%d", e%100)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address(10<<24, at, 0).Addr().String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
		})
	}
	return s
}

package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/dataplane"
	"sluice/internal/engine"
	"sluice/internal/health"
	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/ct/cttest"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
	"sluice/internal/traffic"
)

// unreliable is a dataplane that refuses some rows and sometimes fails.
type unreliable struct{ *rand.Rand }

func (p unreliable) Sync(_ context.Context, s *proxy.State) (proxy.Refused, error) {
	refused := proxy.Refused{}
	for k := range s.Rows {
		if p.IntN(10) == 0 {
			refused[k] = errors.New("no room")
		}
	}
	return refused, nil
}

func (p unreliable) Apply(_ context.Context, s *proxy.State, c *proxy.Changed) (proxy.Refused, error) {
	switch p.IntN(20) {
	case 0:
		return nil, proxy.ErrNeedSync
	case 1:
		return nil, errors.New("not now")
	}
	refused := proxy.Refused{}
	for _, k := range c.Rows {
		if s.Rows[k] != nil && p.IntN(10) == 0 {
			refused[k] = errors.New("no room")
		}
	}
	return refused, nil
}

// Inspect uses what a sync does, so the race detector finds whoever lets both in: it
// takes a while.
func (p unreliable) Inspect(ctx context.Context, _ proxy.Inspection) (proxy.Inspected, error) {
	for range p.IntN(5) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
		p.IntN(2)
	}
	return proxy.Inspected{Objects: p.IntN(9), Differences: []proxy.Difference{{Object: "x"}}[:p.IntN(2)]}, ctx.Err()
}

func (unreliable) Close() error { return nil }

// passer forwards what is in force to the traffic collector, as the daemon does.
type passer struct{ *traffic.Collector }

func (passer) Queued()                                                  {}
func (passer) ServiceSeen(int)                                          {}
func (passer) EndpointSliceSeen(_, _ *discoveryv1.EndpointSlice, _ int) {}
func (passer) NodeSeen(*v1.Node)                                        {}
func (passer) Repairing()                                               {}
func (passer) Began(*proxy.Delta)                                       {}

func (p passer) Done(_ context.Context, r engine.Result) {
	if r.Err == nil {
		p.Applied(r.State.Node, r.Changed)
	}
}

// oneOf returns a random element.
func oneOf[T any](r *rand.Rand, some ...T) T { return some[r.IntN(len(some))] }

// anyService returns a random Service.
func anyService(r *rand.Rand, name string) *v1.Service {
	ip := func() string {
		return oneOf(r, fmt.Sprintf("10.96.0.%d", r.IntN(6)), fmt.Sprintf("fd00::%d", r.IntN(6)), "None", "", "::ffff:10.96.0.1", "nonsense")
	}
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{"sluice.dev/balancing": "\x1b[2J"}},
		Spec: v1.ServiceSpec{
			Type:                  oneOf(r, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, v1.ServiceTypeExternalName),
			ClusterIPs:            []string{ip(), ip()}[:1+r.IntN(2)],
			ExternalTrafficPolicy: oneOf(r, v1.ServiceExternalTrafficPolicyLocal, v1.ServiceExternalTrafficPolicyCluster),
			SessionAffinity:       oneOf(r, v1.ServiceAffinityNone, v1.ServiceAffinityClientIP),
			ExternalIPs:           []string{"198.51.100.1", "fe80::1%eth0", ip()}[:r.IntN(4)],
		},
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	for i := range r.IntN(4) {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{
			Name: oneOf(r, "", "p", fmt.Sprint("p", i)), Protocol: oneOf(r, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP),
			Port: oneOf[int32](r, 80, 81, 0), NodePort: oneOf[int32](r, 0, 30080, 30081),
		})
	}
	return s
}

// anySlice returns a random EndpointSlice of a Service.
func anySlice(r *rand.Rand, name string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: oneOf(r, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN),
	}
	for range r.IntN(3) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{
			Name: oneOf(r, nil, new(""), new("p"), new("p1")), Port: oneOf(r, nil, new(int32(0)), new(int32(8080))), Protocol: oneOf(r, nil, new(v1.ProtocolSCTP)),
		})
	}
	for range r.IntN(20) {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{oneOf(r, fmt.Sprintf("10.1.0.%d", r.IntN(9)), fmt.Sprintf("fd01::%d", r.IntN(9)), "", "::ffff:10.1.0.1", "fe80::1%eth0")}[:r.IntN(2)],
			NodeName:  oneOf(r, nil, new("here"), new("there")), Conditions: discoveryv1.EndpointConditions{Ready: oneOf(r, nil, new(false))},
		})
	}
	return s
}

// anyPath returns the path of a random request, which may be invalid.
func anyPath(r *rand.Rand) string {
	target := oneOf(r, "ns/a", "ns/b:p", "ns/c:80", "ns/none", "ns/", "/", "a", "10.96.0.1:80", "10.96.0.2:81", "[fd00::1]:80", "[::ffff:10.96.0.1]:80",
		"198.51.100.1:9", "192.0.2.1:30080", "127.0.0.1:30080", "[::1]:30081", "10.96.0.1:0", "[fe80::1%25eth0]:80", "0.0.0.0:30080", "\x1b[2J")
	explain := url.Values{
		"to": {target}, "from": {oneOf(r, "", "10.1.0.1", "::ffff:10.1.0.1", "fd01::1", "fe80::1%eth0", "nobody")},
		"proto": {oneOf(r, "", "tcp", "UDP", "sctp", "icmp")}, "in": {oneOf(r, "", "eth0", "\x00")},
	}
	return oneOf(r, statusapi.NodePath, statusapi.ProblemsPath, statusapi.ChangesPath+"?limit=3", statusapi.ChangesPath+"?continue=7",
		statusapi.TrafficPath, statusapi.TrafficPath+"?endpoints=true", statusapi.ServicesPath, statusapi.ServicesPath+"?sort=-state&filter=1&limit=2&continue=1",
		statusapi.ServicesPath+"?problems=true&namespace=ns", statusapi.ServicesPath+"/ns/"+oneOf(r, "a", "b", "c", "d"),
		statusapi.ExplainPath+"?"+explain.Encode(), statusapi.ExplainPath+"?"+explain.Encode())
}

// TestReadersDuringChanges sends all kinds of requests to the status API while
// random objects change and syncs fail. Each must be answered; the race detector and
// panics show other faults.
func TestReadersDuringChanges(t *testing.T) {
	flows := cttest.NewFake()
	for i := range 20 {
		flows.Add(ct.Flow{
			Protocol: uint8(proxy.TCP), Translated: true,
			Orig:  ct.Tuple{Src: netip.MustParseAddrPort("10.1.0.1:1234"), Dst: netip.MustParseAddrPort("10.96.0.1:80")},
			Reply: ct.Tuple{Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 8080), Dst: netip.MustParseAddrPort("10.1.0.1:1234")},
		})
	}
	s := &ProxyServer{
		plan: plan{options: NewOptions(), node: "here", source: folderSource("objects")}, health: health.NewProxyHealth(health.Settings{Timeout: time.Minute}),
		mode: dataplane.Mode{Flows: func() (ct.Interface, error) { return flows, nil }},
		traffic: traffic.New(traffic.Settings{
			Flows: flows, Ends: flows, MaxSeries: 2, Endpoints: true, LocalAddrs: func() ([]netip.Prefix, error) { return nil, nil },
		}),
	}
	e := engine.New(engine.Settings{
		Dataplane: unreliable{rand.New(rand.NewPCG(1, 1))}, Observer: passer{s.traffic}, SyncPeriod: 50 * time.Millisecond,
		Resolver: resolve.New(resolve.Settings{NodeName: "here", NodePortAddresses: resolve.NodePortAddresses{Primary: true}}),
	})
	handler := s.newStatusServer(e).Handler()
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	var all sync.WaitGroup
	all.Go(func() { _ = e.SyncLoop(ctx) })
	all.Go(func() { _ = s.traffic.Run(ctx) })
	all.Go(func() { change(ctx, e) })
	for i := range uint64(8) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(i, 3))
			for ctx.Err() == nil {
				read(t, handler, anyPath(r))
			}
		})
	}
	all.Wait()
}

// change has objects come, change and go.
func change(ctx context.Context, e *engine.Engine) {
	r := rand.New(rand.NewPCG(1, 2))
	e.OnNodeSynced()
	e.OnServiceSynced()
	e.OnEndpointSlicesSynced()
	tick := time.NewTicker(250 * time.Microsecond) // no faster than an API server
	defer tick.Stop()
	for ; ctx.Err() == nil; <-tick.C {
		name := oneOf(r, "a", "b", "c")
		switch r.IntN(8) {
		case 0:
			e.OnServiceUpdate(anyService(r, name), nil)
		case 1:
			e.OnEndpointSliceUpdate(anySlice(r, name), nil)
		case 2, 3, 4:
			e.OnServiceUpdate(nil, anyService(r, name))
		default:
			e.OnEndpointSliceUpdate(nil, anySlice(r, name))
		}
	}
}

// read wants an answer, or a reason why there is none.
func read(t *testing.T, h http.Handler, path string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
	known := w.Code == http.StatusOK || w.Code == http.StatusBadRequest || w.Code == http.StatusNotFound
	if !known || !json.Valid(w.Body.Bytes()) {
		t.Errorf("%s: HTTP %d: %.300s", path, w.Code, w.Body)
	}
}

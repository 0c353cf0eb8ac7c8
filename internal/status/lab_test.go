package status

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/resolve"
	"sluice/internal/statusapi"
)

// plane is a dataplane that refuses the rows of one Service, and fails on demand.
type plane struct {
	refuses string
	fails   atomic.Bool
}

func (p *plane) refused(want *proxy.State) proxy.Refused {
	out := proxy.Refused{}
	for k := range want.Rows {
		if k.Name == p.refuses {
			out[k] = fmt.Errorf("the set is full")
		}
	}
	return out
}

func (p *plane) Sync(_ context.Context, want *proxy.State) (proxy.Refused, error) {
	return p.refused(want), nil
}

func (p *plane) Apply(_ context.Context, want *proxy.State, c *proxy.Changed) (proxy.Refused, error) {
	if p.fails.Load() {
		return nil, fmt.Errorf("the kernel is busy")
	}
	out := p.refused(want)
	for k := range out {
		if !contains(c.Rows, k) {
			delete(out, k)
		}
	}
	return out, nil
}

func contains(all []proxy.PortKey, k proxy.PortKey) bool {
	for _, have := range all {
		if have == k {
			return true
		}
	}
	return false
}

func (*plane) Close() error { return nil }

// silent is an observer that does nothing.
type silent struct{ engine.Observer }

func (silent) Queued()                                                  {}
func (silent) ServiceSeen(int)                                          {}
func (silent) EndpointSliceSeen(_, _ *discoveryv1.EndpointSlice, _ int) {}
func (silent) Began(*proxy.Delta)                                       {}
func (silent) Done(context.Context, engine.Result)                      {}

// counting counts how often the engine is held.
type counting struct {
	*engine.Engine
	looks int
}

func (c *counting) Look(f func(engine.View)) {
	c.looks++
	c.Engine.Look(f)
}

// uncounted is the Traffic of a daemon that counts none.
type uncounted struct{}

func (uncounted) Of(context.Context, []proxy.PortKey) []statusapi.PortTraffic { return nil }

func (uncounted) All(context.Context, bool) ([]statusapi.PortTraffic, time.Time, string) {
	return nil, time.Time{}, "it is off"
}

// settingsOf returns the settings of a healthy node with an engine.
func settingsOf(e Engine) Settings {
	return Settings{
		Engine: e, About: statusapi.Node{Name: "here", Mode: "nftables"},
		Health:  func() statusapi.Health { return statusapi.Health{Healthy: true, Live: true} },
		Tracked: func() *statusapi.Tracking { return nil },
		Traffic: uncounted{},
		Explain: func(context.Context, url.Values) (*statusapi.Explanation, error) {
			return nil, refuse(http.StatusBadRequest, "nobody asks")
		},
		Page:  http.NotFoundHandler(),
		Files: func() []statusapi.Problem { return nil },
	}
}

// lab is a server over a running engine.
type lab struct {
	t      *testing.T
	engine *counting
	plane  *plane
	server *Server
}

// run runs a test in fake time. add adds all objects that exist at the start.
func run(t *testing.T, refuses string, add func(*engine.Engine), test func(*lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &plane{refuses: refuses}
		e := engine.New(engine.Settings{
			Dataplane: p, Resolver: resolve.New(resolve.Settings{NodeName: "here"}), SyncPeriod: time.Hour, Observer: silent{},
		})
		l := &lab{t: t, engine: &counting{Engine: e}, plane: p}
		l.server = New(settingsOf(l.engine))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.SyncLoop(ctx) }()
		add(e)
		e.OnNodeSynced()
		e.OnServiceSynced()
		e.OnEndpointSlicesSynced()
		synctest.Wait()
		test(l)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("SyncLoop: %v", err)
		}
	})
}

// ask sends a request and returns the code, the body and the header.
func (l *lab) ask(method, path string) (int, []byte, http.Header) {
	w := httptest.NewRecorder()
	l.server.Handler().ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+path, nil))
	return w.Code, w.Body.Bytes(), w.Header()
}

// get requests a path, and fails the test unless the response is 200 OK.
func get[T any](l *lab, path string) (out T) {
	l.t.Helper()
	code, body, _ := l.ask(http.MethodGet, path)
	if err := json.Unmarshal(body, &out); code != http.StatusOK || err != nil {
		l.t.Errorf("GET %s: HTTP %d, error %v: %s", path, code, err, body)
	}
	return out
}

func service(namespace, name string, n int) *v1.Service {
	ip := netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}).String()
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Name: "p", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
}

// endpoints returns the EndpointSlice of a Service, with endpoints whose addresses end
// in nums. A negative number is an endpoint that is not ready.
func endpoints(namespace, name string, nums ...int) *discoveryv1.EndpointSlice {
	port, portName, tcp := int32(8080), "p", v1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &tcp}},
	}
	for _, n := range nums {
		ready := n > 0
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.244.%d.%d", max(n, -n)>>8, max(n, -n)&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
		})
	}
	return s
}

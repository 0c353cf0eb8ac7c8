package status

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/engine"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// addServices adds some Services: web uses two of three endpoints, api has none, full
// is refused by the kernel, and bad has a problem.
func addServices(e *engine.Engine) {
	for i, name := range []string{"web", "api", "full", "bad"} {
		s := service("ns", name, i+1)
		if name == "bad" {
			s.Spec.ExternalIPs = []string{"nonsense"}
		}
		e.OnServiceUpdate(nil, s)
	}
	e.OnServiceUpdate(nil, service("other", "web", 9))
	e.OnEndpointSliceUpdate(nil, endpoints("ns", "web", 1, -2, 3))
	for _, name := range []string{"full", "bad"} {
		e.OnEndpointSliceUpdate(nil, endpoints("ns", name, 1))
	}
	e.OnEndpointSliceUpdate(nil, endpoints("other", "web", 1))
}

func TestNode(t *testing.T) {
	run(t, "full", addServices, func(l *lab) {
		n := get[statusapi.Node](l, statusapi.NodePath)
		want := statusapi.Counts{Services: 5, Unreachable: 1, Ports: 5, Endpoints: 6, Refused: 1, Problems: 1}
		if n.Counts != want || !n.Sync.Done || n.Name != "here" || !n.Health.Healthy || n.InForce() {
			t.Errorf("%+v, want counts %+v", n, want)
		}
		if d := n.Doubts; len(d) != 1 || d[0].Kind != "ServicePortsRefused" || d[0].Severity != statusapi.DoubtError ||
			!strings.HasSuffix(d[0].Reason, ": the set is full") || d[0].Since.IsZero() || d[0].Next == "" || d[0].NextAt == nil {
			t.Errorf("doubts %+v", d)
		}
		l.plane.fails.Store(true)
		l.engine.OnEndpointSliceUpdate(nil, endpoints("ns", "web", 1))
		synctest.Wait()
		if n := get[statusapi.Node](l, statusapi.NodePath); n.Counts.Pending != 1 || n.Sync.Error == "" {
			t.Errorf("after a failure: %+v", n)
		}
	})
}

// lines returns a list as short text.
func lines(list statusapi.ServiceList) string {
	var b strings.Builder
	for _, s := range list.Items {
		fmt.Fprintf(&b, "%s/%s %s %s %d/%d %s %d; ", s.Namespace, s.Name, s.Address, strings.Join(s.Ports, ","), s.Used, s.Endpoints, s.State, s.Problems)
	}
	return b.String() + fmt.Sprint(list.Total, list.Continue)
}

func TestServices(t *testing.T) {
	api, bad := "ns/api 10.96.0.2 80/TCP 0/0 NoEndpoints 0; ", "ns/bad 10.96.0.4 80/TCP 1/1 InForce 1; "
	full, web := "ns/full 10.96.0.3 80/TCP 1/1 Refused 0; ", "ns/web 10.96.0.1 80/TCP 2/3 InForce 0; "
	other := "other/web 10.96.0.9 80/TCP 1/1 InForce 0; "
	run(t, "full", addServices, func(l *lab) {
		for query, want := range map[string]string{
			"":                               api + bad + full + web + other + "5",
			"?limit=2":                       api + bad + "52",
			"?limit=2&continue=2":            full + web + "54",
			"?limit=2&continue=4":            other + "5",
			"?continue=99":                   "5",
			"?namespace=other":               other + "1",
			"?namespace=othe":                "0",
			"?sort=-name&limit=1":            other + "51",
			"?filter=WEB":                    web + other + "2",
			"?filter=10.96.0.3":              full + "1",
			"?filter=80/tcp&namespace=ns":    api + bad + full + web + "4",
			"?problems=true":                 api + bad + full + "3",
			"?sort=-state&limit=3":           full + bad + api + "53",
			"?sort=used&limit=2":             api + bad + "52",
			"?sort=-used&limit=1":            web + "51",
			"?filter=web&sort=-name":         other + web + "2",
			"?sort=connections&limit=1":      api + "51",
			"?filter=web&limit=1":            web + "21",
			"?filter=web&limit=1&continue=1": other + "2",
		} {
			if got := lines(get[statusapi.ServiceList](l, statusapi.ServicesPath+query)); got != want {
				t.Errorf("%s:\n got %s\nwant %s", query, got, want)
			}
		}
		l.engine.OnServiceUpdate(service("other", "web", 9), nil)
		synctest.Wait()
		if got := get[statusapi.ServiceList](l, statusapi.ServicesPath); got.Total != 4 || len(got.Items) != 4 {
			t.Errorf("after a Service was removed: %s", lines(got))
		}
	})
}

func TestService(t *testing.T) {
	run(t, "full", addServices, func(l *lab) {
		s := get[statusapi.Service](l, statusapi.ServicesPath+"/ns/web")
		if len(s.Rows) != 1 || len(s.Rows[0].Endpoints) != 3 || s.Used != 2 {
			t.Fatalf("%+v", s)
		}
		last := s.Rows[0].Endpoints[2] // the used ones come first
		if last.Address != "10.244.0.2:8080" || last.Used || last.Reason != "not ready" || !s.Rows[0].Endpoints[0].Used {
			t.Errorf("endpoints %+v", s.Rows[0].Endpoints)
		}
		if f := s.Rows[0].Frontends; len(f) != 1 || f[0] != (statusapi.Frontend{Kind: "ClusterIP", Address: "10.96.0.1:80"}) {
			t.Errorf("frontends %+v", f)
		}
		if s := get[statusapi.Service](l, statusapi.ServicesPath+"/ns/web?limit=1&continue=1"); s.Rows[0].Endpoints[0].Address != "10.244.0.3:8080" || s.Rows[0].Continue != "2" {
			t.Errorf("second page %+v", s.Rows[0])
		}
		if s := get[statusapi.Service](l, statusapi.ServicesPath+"/ns/full"); s.Rows[0].Status.Reason != "the set is full" || s.Rows[0].Status.NextTry == nil {
			t.Errorf("refused: %+v", s.Rows[0].Status)
		}
		if s := get[statusapi.Service](l, statusapi.ServicesPath+"/ns/bad"); len(s.Found) != 1 || s.Found[0].Field != "spec.externalIPs[0]" {
			t.Errorf("problems %+v", s.Found)
		}
	})
}

func TestProblemsAndChanges(t *testing.T) {
	run(t, "full", addServices, func(l *lab) {
		if p := get[statusapi.ProblemList](l, statusapi.ProblemsPath); p.Total != 1 || p.Items[0].Object != "Service ns/bad" {
			t.Errorf("problems %+v", p)
		}
		for namespace, want := range map[string]int{"ns": 1, "other": 0} {
			if p := get[statusapi.ProblemList](l, statusapi.ProblemsPath+"?namespace="+namespace); p.Total != want {
				t.Errorf("problems of namespace %s: %+v, want %d", namespace, p, want)
			}
		}
		l.engine.OnEndpointSliceUpdate(nil, endpoints("ns", "web", 7, 3))
		synctest.Wait()
		c := get[statusapi.ChangeList](l, statusapi.ChangesPath+"?limit=1")
		if len(c.Items) != 1 || c.Items[0].What != "Changed" || c.Items[0].Detail != "1 of 2 endpoints replaced" || c.Items[0].Number != 5 {
			t.Errorf("the last change: %+v", c)
		}
		var seen []uint64
		for path := statusapi.ChangesPath + "?limit=2"; ; path = statusapi.ChangesPath + "?limit=2&continue=" + c.Continue {
			c = get[statusapi.ChangeList](l, path)
			for _, ch := range c.Items {
				seen = append(seen, ch.Number)
			}
			if c.Continue == "" {
				break
			}
		}
		if fmt.Sprint(seen) != "[5 4 3 2 1]" {
			t.Errorf("changes %v", seen)
		}
	})
}

func TestRefusedRequests(t *testing.T) {
	run(t, "", addServices, func(l *lab) {
		for _, tt := range []struct {
			method, path string
			code         int
			says         string
		}{
			{"GET", "/v1/services?limit=0", 400, "limit"},
			{"GET", "/v1/services?limit=501", 400, "from 1 to 500"},
			{"GET", "/v1/services?limit=many", 400, "many"},
			{"GET", "/v1/services?continue=-1", 400, "continue"},
			{"GET", "/v1/services?sort=size", 400, "size"},
			{"GET", "/v1/changes?continue=x", 400, "continue"},
			{"GET", "/v1/services/ns/none", 404, "ns/none"},
			{"GET", "/v1/nothing", 404, "/v1/nothing"},
			{"POST", "/v1/node", 405, "POST"},
			{"DELETE", "/v1/services/ns/web", 405, "DELETE"},
		} {
			code, body, head := l.ask(tt.method, tt.path)
			if code != tt.code || !strings.Contains(string(body), tt.says) || head.Get(statusapi.VersionHeader) != "v1" {
				t.Errorf("%s %s: HTTP %d %s, want %d and %q", tt.method, tt.path, code, body, tt.code, tt.says)
			}
		}
		if code, _, head := l.ask(http.MethodHead, "/v1/node"); code != 200 || head.Get("Cache-Control") != "no-store" {
			t.Errorf("HEAD: %d %v", code, head)
		}
	})
}

// TestEngineIsHeldBriefly checks that of many Services only a few are read while the
// engine is held, and that a page sorted by name reads no others.
func TestEngineIsHeldBriefly(t *testing.T) {
	const many = 4 * servicesPerLook
	add := func(e *engine.Engine) {
		for i := range many {
			e.OnServiceUpdate(nil, service("ns", fmt.Sprintf("s%05d", i), i))
		}
	}
	run(t, "", add, func(l *lab) {
		for query, want := range map[string]int{
			"?limit=100":           4,                        // problems, names, the page, its rows
			"?filter=s0&limit=100": 3 + many/servicesPerLook, // and all Services, in parts
		} {
			l.engine.looks = 0
			get[statusapi.ServiceList](l, statusapi.ServicesPath+query)
			if l.engine.looks != want {
				t.Errorf("%s: the engine was held %d times, want %d", query, l.engine.looks, want)
			}
		}
		time.Sleep(time.Second)
	})
}

// meter has the traffic of one port with two endpoints.
type meter struct{}

func (meter) port(endpoint string, n uint64) statusapi.PortTraffic {
	return statusapi.PortTraffic{
		Namespace: "ns", Name: "web", Port: "p", Protocol: "TCP", Endpoint: endpoint,
		Traffic: statusapi.Traffic{Connections: &n, Refused: map[string]uint64{"SourceRange": n}},
	}
}

func (m meter) All(_ context.Context, endpoints bool) ([]statusapi.PortTraffic, time.Time, string) {
	if endpoints {
		return []statusapi.PortTraffic{m.port("10.244.0.3:8080", 2), m.port("10.244.0.1:8080", 1)}, time.Now(), ""
	}
	return []statusapi.PortTraffic{m.port("", 3), {Namespace: "other", Name: "web", Protocol: "UDP"}}, time.Now(), ""
}

func (m meter) Of(_ context.Context, rows []proxy.PortKey) []statusapi.PortTraffic {
	if !slices.ContainsFunc(rows, func(k proxy.PortKey) bool { return k.Name == "web" }) {
		return nil
	}
	return []statusapi.PortTraffic{m.port("", 3), m.port("10.244.0.3:8080", 2), m.port("10.244.0.1:8080", 1)}
}

func TestTraffic(t *testing.T) {
	run(t, "", addServices, func(l *lab) {
		if got := get[statusapi.TrafficList](l, statusapi.TrafficPath); got.Off == "" || got.Items == nil {
			t.Errorf("without a meter: %+v", got)
		}
		l.server.settings.Traffic = meter{}
		for query, want := range map[string]string{
			"": "web: 2", "?namespace=ns": "web: 1", "?endpoints=true": "web:10.244.0.1:8080 2", "?limit=1&continue=1": "web: 2",
		} {
			got := get[statusapi.TrafficList](l, statusapi.TrafficPath+query)
			if text := fmt.Sprintf("%s:%s %d", got.Items[0].Name, got.Items[0].Endpoint, got.Total); text != want {
				t.Errorf("%s: %s, want %s", query, text, want)
			}
		}
		s := get[statusapi.Service](l, statusapi.ServicesPath+"/ns/web")
		if *s.Traffic.Connections != 3 || s.Traffic.Refused["SourceRange"] != 3 || *s.Rows[0].Endpoints[1].Traffic.Connections != 2 {
			t.Errorf("%+v, endpoints %+v", s.Traffic, s.Rows[0].Endpoints)
		}
		if got := get[statusapi.ServiceList](l, statusapi.ServicesPath+"?sort=-connections&limit=1"); got.Items[0].Name != "web" {
			t.Errorf("sorted: %s", lines(got))
		}
	})
}

// TestServiceReadsItsOwnTraffic checks that an answer about one Service does not cost
// reading the counters of all Services.
func TestServiceReadsItsOwnTraffic(t *testing.T) {
	run(t, "", addServices, func(l *lab) {
		m := &manyPorts{ports: 3}
		l.server.settings.Traffic = m
		s := get[statusapi.Service](l, statusapi.ServicesPath+"/ns/web")
		if *s.Traffic.Connections != 3 || m.reads != 0 {
			t.Errorf("%d connections, the traffic of all Services was read %d times; want 3 and 0", *s.Traffic.Connections, m.reads)
		}
	})
}

// manyPorts has the traffic of some ports, and counts how often all of it was read, and of
// how many rows it was read.
type manyPorts struct {
	meter
	ports, reads, rows int
}

func (m *manyPorts) Of(ctx context.Context, rows []proxy.PortKey) []statusapi.PortTraffic {
	m.rows += len(rows)
	return m.meter.Of(ctx, rows)
}

// TestPagesReadTheirOwnTraffic checks that a page of Services reads the traffic of its own
// rows only or, if it is sorted by traffic, that all traffic is read once for all pages.
func TestPagesReadTheirOwnTraffic(t *testing.T) {
	run(t, "", addServices, func(l *lab) {
		for _, tt := range []struct {
			query       string
			reads, rows int
		}{
			{"?limit=1", 0, 1},
			{"?limit=1&continue=1", 0, 1},
			{"?limit=1&filter=web", 0, 1},
			{"?limit=1&sort=-used", 0, 1},
			{"?limit=1&sort=-connections", 1, 0},
			{"?limit=1&sort=-connections&continue=1", 0, 0},
			{"?limit=1&sort=-bytes", 1, 0},
		} {
			m := &manyPorts{ports: 3}
			l.server.settings.Traffic = m
			if get[statusapi.ServiceList](l, statusapi.ServicesPath+tt.query); m.reads != tt.reads || m.rows != tt.rows {
				t.Errorf("%s: all traffic was read %d times, and that of %d rows; want %d and %d", tt.query, m.reads, m.rows, tt.reads, tt.rows)
			}
		}
		l.server.settings.Traffic = meter{}
		for _, query := range []string{"?filter=ns/web", "?sort=-used", ""} {
			for _, s := range get[statusapi.ServiceList](l, statusapi.ServicesPath+query).Items {
				if s.Namespace == "ns" && s.Name == "web" && (s.Traffic == nil || *s.Traffic.Connections != 3) {
					t.Errorf("%q: the traffic of ns/web is %+v", query, s.Traffic)
				}
			}
		}
	})
}

func (m *manyPorts) All(context.Context, bool) ([]statusapi.PortTraffic, time.Time, string) {
	m.reads++
	return make([]statusapi.PortTraffic, m.ports), time.Now(), ""
}

// TestTrafficPages checks that traffic is read once for all pages if they are
// requested one after the other, and that nothing is kept after the last.
func TestTrafficPages(t *testing.T) {
	run(t, "", addServices, func(l *lab) {
		many := &manyPorts{ports: 3}
		l.server.settings.Traffic = many
		for _, step := range []struct {
			query string
			after time.Duration
			reads int // so far
		}{
			{"?limit=1", 0, 1},
			{"?limit=1&continue=1", 0, 1},
			{"?limit=1&continue=2", 0, 1},
			{"?limit=1", 0, 2},
			{"?limit=1&continue=1&endpoints=true", 0, 3},
			{"?limit=1&continue=1&namespace=ns", 0, 4},
			{"?limit=1", 0, 5},
			{"?limit=1&continue=1", snapshotAge + 1, 6},
			{"?limit=1&continue=2", 0, 6},
		} {
			time.Sleep(step.after)
			get[statusapi.TrafficList](l, statusapi.TrafficPath+step.query)
			if many.reads != step.reads {
				t.Errorf("%s: traffic was read %d times, want %d", step.query, many.reads, step.reads)
			}
		}
		if l.server.lastTraffic.Load() != nil {
			t.Error("the snapshot is kept after the last page")
		}
	})
}

// TestServiceResponseIsBounded requests a Service with many ports and endpoints.
func TestServiceResponseIsBounded(t *testing.T) {
	add := func(e *engine.Engine) {
		s := service("ns", "large", 1)
		slice := endpoints("ns", "large")
		s.Spec.Ports, slice.Ports = nil, nil
		for i := range 200 {
			name, port := fmt.Sprintf("p%d", i), int32(i+1)
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: name, Port: port, Protocol: v1.ProtocolTCP})
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: new(v1.ProtocolTCP)})
		}
		for i := range 100 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.1.%d", i)}},
				discoveryv1.Endpoint{Addresses: []string{"nonsense", fmt.Sprint(i)}})
		}
		for i := range 7 {
			slice := slice.DeepCopy()
			slice.Name += fmt.Sprint(i)
			e.OnEndpointSliceUpdate(nil, slice)
		}
		e.OnServiceUpdate(nil, s)
	}
	run(t, "", add, func(l *lab) {
		s := get[statusapi.Service](l, statusapi.ServicesPath+"/ns/large?limit=500")
		n := 0
		for _, p := range s.Rows {
			n += len(p.Endpoints)
		}
		if len(s.Rows) != 200 || n > maxEndpoints || n < maxEndpoints/2 || s.Rows[0].Total < 100 || s.Rows[0].Continue == "" || len(s.Found) != statusapi.MaxPage || s.Problems <= len(s.Found) {
			t.Errorf("%d rows, %d endpoints of %d, next %q, %d of %d problems", len(s.Rows), n, s.Rows[0].Total, s.Rows[0].Continue, len(s.Found), s.Problems)
		}
	})
}

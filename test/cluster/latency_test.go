package cluster

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/test/cluster/testbed"
)

// The size of the cluster that figures are taken of.
const (
	manyServices  = 1000
	manyEndpoints = 10
)

// pace is how often the traffic is looked at; no figure is finer than that.
const pace = 500 * time.Microsecond

// figures says how much effort goes into them.
var figures = struct {
	samples *int
	settle  *time.Duration
}{
	flag.Int("samples", 60, "replace an endpoint this many times"),
	flag.Duration("settle", 3*time.Second, "let daemons rest this long before their memory is read"),
}

// TestLatency prints figures and judges none of them: how long traffic takes to
// follow a change at the API server, and what an idle daemon occupies.
func TestLatency(t *testing.T) {
	s := newScene(t)
	s.fill()
	pods := s.pods("web")
	svc := s.service("web", func(svc *v1.Service) {
		one := v1.IPFamilyPolicySingleStack
		svc.Spec.IPFamilyPolicy = &one
	})
	s.publish(svc, ready(pods[1])...)
	s.expectEverywhere("web-2", clusterIPs(svc)...)

	var all []sample
	bare := s.watchBare()
	for i := range *figures.samples {
		all = append(all, s.measure(svc, pods[1+(i+1)%2], bare))
	}
	say(fmt.Sprintf("%d Services x %d endpoints, an endpoint replaced %d times:\n%s",
		manyServices, manyEndpoints, len(all), table(all)))
	s.printMemory()
}

// fill creates Services whose endpoints are nowhere.
func (s *scene) fill() {
	s.Helper()
	started := time.Now()
	parallel(manyServices, func(i int) {
		svc := &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("many-%d", i), Namespace: s.namespace},
			Spec:       v1.ServiceSpec{Ports: []v1.ServicePort{{Name: "tcp", Port: servicePort}}},
		}
		made, err := bed.Client.CoreV1().Services(s.namespace).Create(s.Context(), svc, metav1.CreateOptions{})
		if err != nil {
			s.Errorf("create Service %s: %v", svc.Name, err)
			return
		}
		var members []testbed.Member
		for k := range manyEndpoints {
			addr := netip.AddrFrom4([4]byte{10, 244, 100 + byte(i/25), byte(i%25*manyEndpoints + k)})
			members = append(members, testbed.Member{Pod: &testbed.Pod{
				Node: bed.Nodes[(i+k)%len(bed.Nodes)], Addrs: []netip.Addr{addr},
			}})
		}
		if err := bed.Publish(s.Context(), made, members...); err != nil {
			s.Error(err)
		}
	})
	if s.Failed() {
		s.FailNow()
	}
	s.Logf("created %d Services in %.1f s", manyServices, time.Since(started).Seconds())
}

// parallel calls f for all numbers below n, a few at a time.
func parallel(n int, f func(i int)) {
	const workers = 8
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	running.Wait()
}

// sample is the moments of one change.
type sample struct {
	sent     time.Time // the update was sent to the API server
	returned time.Time // the API server had answered
	heard    time.Time // a client that only watches had the event
	followed time.Time // the first request was answered by the new endpoint
}

// heard is an event at the client that only watches.
type heard struct {
	at     time.Time
	object *discoveryv1.EndpointSlice
}

// watchBare watches the EndpointSlices of the scene with nothing but client-go,
// in the encoding that the daemon uses.
func (s *scene) watchBare() <-chan heard {
	s.Helper()
	cfg := rest.CopyConfig(bed.Admin)
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		s.Fatalf("make a client: %v", err)
	}
	list, err := client.DiscoveryV1().EndpointSlices(s.namespace).List(s.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		s.Fatalf("list EndpointSlices: %v", err)
	}
	w, err := client.DiscoveryV1().EndpointSlices(s.namespace).Watch(s.Context(),
		metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		s.Fatalf("watch EndpointSlices: %v", err)
	}
	s.Cleanup(w.Stop)
	out := make(chan heard, 16)
	go func() {
		defer close(out)
		for e := range w.ResultChan() {
			if obj, ok := e.Object.(*discoveryv1.EndpointSlice); ok && e.Type == watch.Modified {
				out <- heard{time.Now(), obj}
			}
		}
	}()
	return out
}

// measure replaces the endpoint of a Service by another pod.
func (s *scene) measure(svc *v1.Service, to *testbed.Pod, bare <-chan heard) sample {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), deadline)
	defer cancel()
	var m sample
	var running sync.WaitGroup
	running.Go(func() { m.followed = follow(ctx, s.clients[0], clusterIPs(svc)[0], to.Addrs[proxy.IPv4]) })
	running.Go(func() {
		for h := range bare {
			if h.object.Endpoints[0].Addresses[0] == to.Addrs[proxy.IPv4].String() {
				m.heard = h.at
				return
			}
		}
	})
	m.sent = time.Now()
	s.publish(svc, ready(to)...)
	m.returned = time.Now()
	running.Wait()
	if m.followed.IsZero() || m.heard.IsZero() {
		s.Fatalf("the change to %s arrived nowhere", to.Name)
	}
	return m
}

// follow sends one request after the other until one is answered by the wanted
// endpoint, and returns when that was.
func follow(ctx context.Context, from place, to netip.AddrPort, want netip.Addr) time.Time {
	flow := traffic.Flow{Protocol: proxy.TCP, Src: from.addrs[proxy.IPv4], Dst: to, Patience: patience}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for ctx.Err() == nil {
		seen, err := from.host.Probe(ctx, []traffic.Flow{flow})
		if err == nil && seen[0].By.Addr() == want {
			return time.Now()
		}
		<-tick.C
	}
	return time.Time{}
}

// table prints the parts of all samples in milliseconds.
func table(all []sample) string {
	rows := []struct {
		name string
		part func(sample) time.Duration
	}{
		{"the update call", func(m sample) time.Duration { return m.returned.Sub(m.sent) }},
		{"its return to a bare watch's event: the API's", func(m sample) time.Duration { return m.heard.Sub(m.returned) }},
		{"that event to traffic: ours", func(m sample) time.Duration { return m.followed.Sub(m.heard) }},
		{"its return to traffic: both", func(m sample) time.Duration { return m.followed.Sub(m.returned) }},
		{"its start to traffic: all", func(m sample) time.Duration { return m.followed.Sub(m.sent) }},
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-48s %8s %8s %8s\n", "milliseconds", "p50", "p90", "max")
	for _, r := range rows {
		var parts []time.Duration
		for _, m := range all {
			parts = append(parts, r.part(m))
		}
		slices.Sort(parts)
		at := func(percent int) float64 {
			return float64(parts[min(len(parts)-1, len(parts)*percent/100)].Microseconds()) / 1000
		}
		fmt.Fprintf(&b, "%-48s %8.1f %8.1f %8.1f\n", r.name, at(50), at(90), at(100))
	}
	return b.String()
}

// printMemory prints what the daemons occupy when they have had nothing to do
// for a while.
func (s *scene) printMemory() {
	s.Helper()
	<-time.After(*figures.settle)
	for _, p := range s.proxies {
		m, err := p.Memory()
		if err != nil {
			s.Fatal(err)
		}
		say(fmt.Sprintf("%s after %v without work: %s resident, %s of it anonymous",
			p.Name, *figures.settle, mebibytes(m.Resident), mebibytes(m.Anonymous)))
	}
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

package faults

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/test/daemon/testbed"
)

// limitsPart is how much of the limits TestLimits has.
var limitsPart = flag.Int("limits", 10, "TestLimits has a part in so many of the limits; 1: all")

// part returns how many there are of what a node has at most n of.
func part(n int) int { return n / *limitsPart }

// What a node has at most.
const (
	largeEndpoints = 5_000 // of one Service
	widePorts      = 1_000 // of another one
	nodePorts      = 2_768 // the whole range
	localAddresses = 3_000
	rivals         = 1_000 // Services that want one address

	largeSlices   = 100
	firstNodePort = 30_000
)

var (
	wideIP = netip.MustParseAddr("172.30.1.2")
	longIP = netip.MustParseAddrPort("172.30.1.3:80")
)

// TestLimits has one node serve as much of everything as anybody has at once, or a part of it, in every
// mode: it all answers, a change of another Service comes through, and what is gone is not kept.
func TestLimits(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Run("sh", "-c", fmt.Sprintf("for i in $(seq 0 %d); do echo addr add 100.64.$((i/256)).$((i%%256))/32 dev lo; done | ip -batch -", part(localAddresses)-1))
			d := bed.Start(nil)
			bed.AwaitSync()
			before := memory(d, "VmRSS")
			took := func(what string, holds ...func() bool) time.Duration {
				t.Helper()
				began := time.Now()
				for _, h := range holds {
					testbed.EventuallyWithin(bed.T, time.Minute, what, h)
				}
				return time.Since(began)
			}
			writeLimits(bed)
			n := part(localAddresses) - 1
			last := netip.AddrFrom4([4]byte{100, 64, byte(n >> 8), byte(n)})
			all := took("everything", bed.Answers(longIP, testbed.PodB),
				bed.Answers(netip.AddrPortFrom(wideIP, 1), testbed.PodA), bed.Answers(netip.AddrPortFrom(wideIP, uint16(part(widePorts))), testbed.PodA),
				bed.Answers(netip.AddrPortFrom(last, firstNodePort), testbed.PodA), bed.Answers(netip.AddrPortFrom(last, uint16(firstNodePort+part(nodePorts)-1)), testbed.PodA))
			bed.AwaitFreshRules(mode)
			writeLarge(bed, 1)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
			other := took("a change of another Service", bed.Answers(testbed.ClusterIP, testbed.PodB))
			peak := memory(d, "VmHWM")
			removeLimits(bed)
			gone := took("the end of it", func() bool {
				_, fate := bed.Ask(testbed.ClientIP, longIP)
				return fate != traffic.Answered
			})
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			testbed.EventuallyWithin(bed.T, time.Minute, "a change of what is left", bed.Answers(testbed.ClusterIP, testbed.PodA))
			bed.AwaitFreshRules(mode)
			// The runtime collects garbage every two minutes of itself, and returns it in the background.
			testbed.EventuallyWithin(bed.T, 4*time.Minute, "nearly as little memory as before", func() bool { return memory(d, "VmRSS") < 2*before })
			reliability.Record(t, reliability.Result{
				Fault: fmt.Sprintf("a part in %d of what a node has at most comes and goes", *limitsPart), Mode: mode, Tried: 1, Repairs: []time.Duration{all, other, gone},
				Note: fmt.Sprintf("all in force after %v, another Service's change after %v; memory %d MiB before, %d at most, %d after",
					all.Round(10*time.Millisecond), other.Round(time.Millisecond), before>>20, peak>>20, memory(d, "VmRSS")>>20),
			})
		})
	}
}

// memory returns one of the sizes of the daemon that the system tells, in bytes.
func memory(d *testbed.Daemon, name string) (size int) {
	d.T.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Cmd.Process.Pid))
	if err != nil {
		d.T.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			if _, err := fmt.Sscanf(rest, "%d kB", &size); err != nil {
				d.T.Fatal(err)
			}
		}
	}
	return size << 10
}

// limitFiles are the files that writeLimits writes.
var limitFiles = []string{"large.json", "wide.json", "nodeports.json", "part(rivals).json", "long.json"}

func removeLimits(bed *testbed.Testbed) {
	bed.T.Helper()
	for _, name := range limitFiles {
		if err := os.Remove(filepath.Join(bed.Dir, name)); err != nil {
			bed.T.Fatal(err)
		}
	}
}

// writeLimits writes Services with as much of everything as there may be.
func writeLimits(bed *testbed.Testbed) {
	bed.T.Helper()
	writeLarge(bed, 0)
	var ports []v1.ServicePort
	for p := range part(widePorts) {
		ports = append(ports, v1.ServicePort{Name: fmt.Sprint("p", p), Port: int32(p + 1)})
	}
	writeObjects(bed, "wide.json", serviceWith("default", "wide", wideIP.String(), ports...), slicesOf("default", "wide", 1, ports, testbed.PodA))

	var objects []any
	const each = 692 // ports of one Service
	for first := firstNodePort; first < firstNodePort+part(nodePorts); first += each {
		var ports []v1.ServicePort
		for p := first; p < min(first+each, firstNodePort+part(nodePorts)); p++ {
			ports = append(ports, v1.ServicePort{Name: fmt.Sprint("p", p), Port: int32(p), NodePort: int32(p)})
		}
		name := fmt.Sprint("nodeports-", first)
		svc := serviceWith("default", name, fmt.Sprintf("172.30.2.%d", (first-firstNodePort)/each), ports...)
		svc.Spec.Type = v1.ServiceTypeNodePort
		objects = append(objects, svc, slicesOf("default", name, 1, ports, testbed.PodA))
	}
	writeObjects(bed, "nodeports.json", objects...)

	objects = nil
	for i := range part(rivals) {
		svc := serviceWith("default", fmt.Sprint("rival-", i), fmt.Sprintf("172.30.%d.%d", 10+i>>8, i&255), v1.ServicePort{Port: 80})
		svc.Spec.ExternalIPs = []string{"203.0.113.99"}
		objects = append(objects, svc)
	}
	writeObjects(bed, "part(rivals).json", objects...)

	label := strings.Repeat("n", 63)
	port := v1.ServicePort{Name: strings.Repeat("p", 63), Port: int32(longIP.Port())}
	writeObjects(bed, "long.json", serviceWith(label, label, longIP.Addr().String(), port), slicesOf(label, label, 1, []v1.ServicePort{port}, testbed.PodB))
}

// writeLarge writes a Service with very many endpoints, of which one is another in every generation.
func writeLarge(bed *testbed.Testbed, generation int) {
	bed.T.Helper()
	port := v1.ServicePort{Name: "http", Port: 80}
	var endpoints []netip.Addr
	for e := range part(largeEndpoints) {
		endpoints = append(endpoints, netip.AddrFrom4([4]byte{10, 9, byte(e >> 8), byte(e)}))
	}
	endpoints[part(largeEndpoints)/2] = netip.AddrFrom4([4]byte{10, 10, 0, byte(generation)})
	writeObjects(bed, "large.json", serviceWith("default", "large", "172.30.1.1", port),
		slicesOf("default", "large", largeSlices, []v1.ServicePort{port}, endpoints...))
}

func serviceWith(namespace, name, clusterIP string, ports ...v1.ServicePort) *v1.Service {
	return &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1.ServiceSpec{ClusterIP: clusterIP, Ports: ports},
	}
}

// slicesOf parts endpoints into slices, whose names are as long as they may be.
func slicesOf(namespace, service string, n int, ports []v1.ServicePort, endpoints ...netip.Addr) []any {
	var out []any
	for i := range n {
		e := &discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: fmt.Sprintf("%s-%0*d", service, 252-len(service), i),
				Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for _, p := range ports {
			e.Ports = append(e.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: new(int32(8080))})
		}
		for _, a := range endpoints[i*len(endpoints)/n : (i+1)*len(endpoints)/n] {
			e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}})
		}
		out = append(out, e)
	}
	return out
}

// writeObjects writes a file of objects, and of lists of them.
func writeObjects(bed *testbed.Testbed, name string, objects ...any) {
	bed.T.Helper()
	var text strings.Builder
	for _, o := range objects {
		list, ok := o.([]any)
		if !ok {
			list = []any{o}
		}
		for _, o := range list {
			if err := json.NewEncoder(&text).Encode(o); err != nil {
				bed.T.Fatal(err)
			}
		}
	}
	bed.Write(name, text.String())
}

package resolve

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestMany resolves a Service with as much of everything as fits into an object: its author
// must not be able to delay the changes of others.
func TestMany(t *testing.T) {
	addr := netip.MustParseAddr("11.0.0.0")
	next := func() string { addr = addr.Next(); return addr.String() }
	for name, edit := range map[string]func(*v1.ServiceSpec, int){
		"addresses": func(s *v1.ServiceSpec, _ int) { s.ExternalIPs = append(s.ExternalIPs, next()) },
		"ranges": func(s *v1.ServiceSpec, _ int) {
			s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges, next()+"/32")
		},
		"ports": func(s *v1.ServiceSpec, i int) {
			if i%4 == 0 {
				s.Ports = append(s.Ports, v1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(i%65535 + 1), Protocol: v1.ProtocolUDP})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serviceOf("ns/web", "10.96.0.1", loadBalancer("203.0.113.1"))
			for i := range 100_000 {
				edit(&s.Spec, i)
			}
			r := New(Settings{})
			began := time.Now()
			add(t, r, s)
			r.Update()
			add(t, r, sliceOf("ns/web-1", "web", endpointOf("10.1.0.1")))
			r.Update()
			// It is a second, and was a minute when each was looked for among all.
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

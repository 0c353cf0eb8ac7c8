package conformance

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sluice/internal/proxy"
	"sluice/internal/resolve"
)

// event is one update of the resolver.
type event func(*resolve.Resolver)

// track is a list of events that must happen in this order; events of other tracks may come in
// between.
type track []event

// begin returns the events that build a world from nothing, one object at a time, in random order
// and with detours.
func (w *World) begin(rng *rand.Rand) []event {
	half, whole := w.serviceCIDR(), w.serviceCIDR()
	half.Spec.CIDRs = half.Spec.CIDRs[:1]
	nothing := &World{Config: w.Config}
	return shuffle(append(nothing.changes(w, rng), track{
		func(r *resolve.Resolver) { r.UpdateServiceCIDR(nil, half) },
		func(r *resolve.Resolver) { r.UpdateServiceCIDR(half, whole) },
	}), rng)
}

// changes returns a track for each object that differs, and tracks for objects that exist in
// neither world.
func (w *World) changes(to *World, rng *rand.Rand) []track {
	tracks := visitorTracks(to)
	if !maps.Equal(w.NodeLabels, to.NodeLabels) {
		tracks = append(tracks, track{func(r *resolve.Resolver) { r.UpdateNode(node(to.NodeLabels)) }})
	}
	if had, has := w.serviceCIDR(), to.serviceCIDR(); !slices.Equal(had.Spec.CIDRs, has.Spec.CIDRs) {
		tracks = append(tracks, track{func(r *resolve.Resolver) { r.UpdateServiceCIDR(had, has) }})
	}
	tracks = append(tracks, objectTracks(w.Services, to.Services, serviceEvent, wrongService, rng)...)
	return append(tracks, objectTracks(w.Slices, to.Slices, sliceEvent, wrongSlice, rng)...)
}

// shuffle merges tracks into one list of events, in random order.
func shuffle(tracks []track, rng *rand.Rand) []event {
	var out []event
	for len(tracks) > 0 {
		i := rng.IntN(len(tracks))
		out = append(out, tracks[i][0])
		if tracks[i] = tracks[i][1:]; len(tracks[i]) == 0 {
			tracks = slices.Delete(tracks, i, i+1)
		}
	}
	return out
}

// serviceEvent returns the event that adds, updates or deletes a Service.
func serviceEvent(s *v1.Service, gone bool) event {
	if gone {
		return func(r *resolve.Resolver) { r.Services.Update(s, nil) }
	}
	return func(r *resolve.Resolver) { r.Services.Update(nil, s) }
}

func sliceEvent(s *discoveryv1.EndpointSlice, gone bool) event {
	return func(r *resolve.Resolver) { r.Endpoints.Update(s, gone) }
}

// objectTracks returns a track for each object that differs. Every other track sets a wrong version
// of the object first; every fourth deletes and re-adds it at the end.
func objectTracks[T metav1.Object](
	from, to []T, tell func(o T, gone bool) event, wrong func(T, *rand.Rand) T, rng *rand.Rand,
) (tracks []track) {
	was := map[string]T{}
	for _, o := range from {
		was[key(o)] = o
	}
	for _, o := range to {
		old, had := was[key(o)]
		delete(was, key(o))
		if had && reflect.DeepEqual(old, o) {
			continue
		}
		t := track{tell(o, false)}
		if rng.IntN(2) == 0 {
			t = append(track{tell(wrong(o, rng), false)}, t...)
		}
		if rng.IntN(4) == 0 {
			t = append(t, tell(o, true), tell(o, false))
		}
		tracks = append(tracks, t)
	}
	for _, k := range slices.Sorted(maps.Keys(was)) {
		tracks = append(tracks, track{tell(was[k], true)})
	}
	return tracks
}

func wrongService(s *v1.Service, rng *rand.Rand) *v1.Service {
	wrong := s.DeepCopy()
	switch rng.IntN(6) {
	case 0:
		wrong.Spec.ExternalTrafficPolicy = opposite(s.Spec.ExternalTrafficPolicy)
	case 1:
		wrong.Spec.InternalTrafficPolicy = new(opposite(ptr.Deref(s.Spec.InternalTrafficPolicy, "")))
	case 2:
		wrong.Spec.ExternalIPs, wrong.Status = nil, v1.ServiceStatus{}
	case 3:
		wrong.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		wrong.Spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: new(int32(60))}}
	case 4:
		wrong.Spec.Type, wrong.Status = v1.ServiceTypeClusterIP, v1.ServiceStatus{}
	case 5:
		for i := range wrong.Spec.Ports {
			wrong.Spec.Ports[i].Port += 1000
		}
	}
	return wrong
}

func opposite[T ~string](policy T) T {
	if policy == "Local" {
		return "Cluster"
	}
	return "Local"
}

// wrongSlice returns a slice with an additional endpoint, with half of its endpoints, or with none
// ready.
func wrongSlice(s *discoveryv1.EndpointSlice, rng *rand.Rand) *discoveryv1.EndpointSlice {
	wrong := s.DeepCopy()
	switch rng.IntN(3) {
	case 0:
		addr := map[discoveryv1.AddressType]string{"IPv4": "10.250.0.1", "IPv6": "fd00:10:250::1"}[s.AddressType]
		wrong.Endpoints = append([]discoveryv1.Endpoint{endpoint(addr, nodeName, conditions["ready"])}, wrong.Endpoints...)
	case 1:
		wrong.Endpoints = wrong.Endpoints[:len(wrong.Endpoints)/2]
	case 2:
		for i := range wrong.Endpoints {
			c := &wrong.Endpoints[i].Conditions
			c.Ready, c.Serving = new(false), new(false)
		}
	}
	return wrong
}

// visitorTracks returns the tracks of a Service that comes and goes. While it exists it claims the
// addresses of all others, and wins because it is older.
func visitorTracks(w *World) []track {
	s := &v1.Service{Spec: v1.ServiceSpec{
		Type: v1.ServiceTypeLoadBalancer, ClusterIP: "172.30.255.250",
		Ports: []v1.ServicePort{{Name: "p80", Port: 80, NodePort: 3999}},
	}}
	s.Namespace, s.Name, s.CreationTimestamp = "aaa", "visitor", createdAt(1000)
	for _, other := range w.Services {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, other.Spec.ExternalIPs...)
		for _, in := range other.Status.LoadBalancer.Ingress {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: in.IP})
		}
	}
	slice := endpointSlice(s, proxy.IPv4, 80)
	slice.Endpoints = []discoveryv1.Endpoint{
		endpoint("10.250.0.2", nodeName, conditions["ready"]), endpoint("10.250.0.3", "far", conditions["ready"]),
	}
	return []track{
		{serviceEvent(s, false), serviceEvent(s, true)},
		{sliceEvent(slice, false), sliceEvent(slice, true)},
	}
}

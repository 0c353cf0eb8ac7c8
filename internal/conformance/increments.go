package conformance

import (
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"

	"sluice/internal/resolve"
)

// event is one thing that a resolver hears of.
type event func(*resolve.Resolver)

// track is a row of events that must come in this order, with others between.
type track []event

// seeded returns the randomness of a group: the same at each run.
func seeded(id string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(id))
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}

// begin returns the events that make a world out of a bare resolver, one object
// at a time, in any order and with detours.
func (w *World) begin(rng *rand.Rand) []event {
	half, whole := serviceCIDR(w.ranges()[:1]), serviceCIDR(w.ranges())
	tracks := []track{{
		func(r *resolve.Resolver) { r.UpdateServiceCIDR(nil, half) },
		func(r *resolve.Resolver) { r.UpdateServiceCIDR(half, whole) },
	}}
	nothing := &World{Config: w.Config}
	return shuffle(append(tracks, nothing.changes(w, rng)...), rng)
}

// step returns the events that lead from one phase to the next.
func (w *World) step(to *World, rng *rand.Rand) []event { return shuffle(w.changes(to, rng), rng) }

// changes returns a track for each object that differs, and some for objects
// that are there in neither world.
func (w *World) changes(to *World, rng *rand.Rand) []track {
	serviceName := func(s *Service) string { return s.Name }
	sliceName := func(s *Slice) string { return s.Service + "/" + s.Name }
	was, is := byName(w.Services, serviceName), byName(to.Services, serviceName)
	var tracks []track
	if !maps.Equal(w.NodeLabels, to.NodeLabels) {
		tracks = append(tracks, track{func(r *resolve.Resolver) { r.UpdateNode(node(to.NodeLabels)) }})
	}
	for _, name := range union(was, is) {
		tracks = append(tracks, changeService(was[name], is[name], rng))
	}
	wasSlice, isSlice := byName(w.Slices, sliceName), byName(to.Slices, sliceName)
	for _, name := range union(wasSlice, isSlice) {
		tracks = append(tracks, changeSlice(wasSlice[name], isSlice[name], rng))
	}
	return append(tracks, visit(to)...)
}

func byName[T any](list []T, name func(T) string) map[string]T {
	m := map[string]T{}
	for _, o := range list {
		m[name(o)] = o
	}
	return m
}

// union returns the keys of both, sorted, but for those with equal values.
func union[T any](a, b map[string]T) []string {
	var keys []string
	for k, v := range a {
		if other, ok := b[k]; !ok || !reflect.DeepEqual(v, other) {
			keys = append(keys, k)
		}
	}
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// shuffle mixes tracks into one row of events.
func shuffle(tracks []track, rng *rand.Rand) []event {
	var out []event
	tracks = slices.DeleteFunc(tracks, func(t track) bool { return len(t) == 0 })
	for len(tracks) > 0 {
		i := rng.IntN(len(tracks))
		out = append(out, tracks[i][0])
		if tracks[i] = tracks[i][1:]; len(tracks[i]) == 0 {
			tracks = slices.Delete(tracks, i, i+1)
		}
	}
	return out
}

// changeService leads from one form of a Service to another, every other time
// by way of a third.
func changeService(was, is *Service, rng *rand.Rand) track {
	if is == nil {
		return track{func(r *resolve.Resolver) { r.Services.Update(was.object(), nil) }}
	}
	set := func(s *Service) event {
		return func(r *resolve.Resolver) { r.Services.Update(nil, s.object()) }
	}
	t := track{set(is)}
	if rng.IntN(2) == 0 {
		t = append(track{set(detour(is, rng))}, t...)
	}
	if rng.IntN(4) == 0 {
		remove := func(r *resolve.Resolver) { r.Services.Update(is.object(), nil) }
		t = append(t, remove, set(is))
	}
	return t
}

// detour returns a Service that is wrong in one way.
func detour(s *Service, rng *rand.Rand) *Service {
	wrong := *s
	switch rng.IntN(6) {
	case 0:
		wrong.ETP = opposite(s.ETP)
	case 1:
		wrong.ITP = opposite(s.ITP)
	case 2:
		wrong.ExternalIPs, wrong.LBIngress = nil, nil
	case 3:
		wrong.Affinity = &Affinity{ClientIPTimeoutSeconds: 60}
	case 4:
		wrong.Type, wrong.LBIngress = "", nil
	case 5:
		wrong.Ports = nil
		for _, p := range s.Ports {
			number := *p.Port + 1000
			p.Port = &number
			wrong.Ports = append(wrong.Ports, p)
		}
	}
	return &wrong
}

func opposite(policy string) string {
	if policy == "Local" {
		return "Cluster"
	}
	return "Local"
}

// changeSlice leads from one form of a slice to another, every other time by
// way of a third.
func changeSlice(was, is *Slice, rng *rand.Rand) track {
	if is == nil {
		return track{func(r *resolve.Resolver) { r.Endpoints.Update(was.object(), true) }}
	}
	set := func(s *Slice) event {
		return func(r *resolve.Resolver) { r.Endpoints.Update(s.object(), false) }
	}
	t := track{set(is)}
	if rng.IntN(2) == 0 {
		t = append(track{set(wrongSlice(is, rng))}, t...)
	}
	if rng.IntN(4) == 0 {
		remove := func(r *resolve.Resolver) { r.Endpoints.Update(is.object(), true) }
		t = append(t, remove, set(is))
	}
	return t
}

// wrongSlice returns a slice with an endpoint too many, too few, or none ready.
func wrongSlice(s *Slice, rng *rand.Rand) *Slice {
	wrong := *s
	wrong.Endpoints = slices.Clone(s.Endpoints)
	switch rng.IntN(3) {
	case 0:
		ip := "10.250.0.1"
		if s.AddressType == "IPv6" {
			ip = "fd00:10:250::1"
		}
		wrong.Endpoints = append([]Endpoint{{IP: ip, Node: nodeName}}, wrong.Endpoints...)
	case 1:
		wrong.Endpoints = wrong.Endpoints[:len(wrong.Endpoints)/2]
	case 2:
		no := false
		for i := range wrong.Endpoints {
			wrong.Endpoints[i].Ready, wrong.Endpoints[i].Serving = &no, &no
		}
	}
	return &wrong
}

// visit is a Service that comes and goes. Meanwhile it claims addresses that
// others have, and has the better claim.
func visit(w *World) []track {
	port := int32(80)
	s := &Service{
		Name: "aaa/visitor", Type: "LoadBalancer", ClusterIP: "172.30.255.250", Age: 1000,
		Ports: []Port{{Name: "p80", Port: &port, NodePort: 3999}},
	}
	for _, other := range w.Services {
		s.ExternalIPs = append(s.ExternalIPs, other.ExternalIPs...)
		for _, in := range other.LBIngress {
			if in.IP != "" {
				s.LBIngress = append(s.LBIngress, Ingress{IP: in.IP})
			}
		}
	}
	slice := &Slice{
		Name: "visitor-0", Service: s.Name, AddressType: "IPv4", Ports: s.Ports,
		Endpoints: []Endpoint{{IP: "10.250.0.2", Node: nodeName}, {IP: "10.250.0.3", Node: "far"}},
	}
	return []track{
		{
			func(r *resolve.Resolver) { r.Services.Update(nil, s.object()) },
			func(r *resolve.Resolver) { r.Services.Update(s.object(), nil) },
		},
		{
			func(r *resolve.Resolver) { r.Endpoints.Update(slice.object(), false) },
			func(r *resolve.Resolver) { r.Endpoints.Update(slice.object(), true) },
		},
	}
}

package wine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sluice/internal/kernel/hns"
)

// do calls a function of computenetwork.dll or vmcompute.dll.
func (s *server) do(ctx context.Context, q request) (answer, error) {
	switch q.function {
	case "HNSCall":
		return s.hnsCall(ctx, q.text[0]+" "+q.text[1])
	case "HcnEnumerateNetworks":
		return s.enumerate(ctx, q, s.allNetworks)
	case "HcnEnumerateEndpoints":
		return s.enumerate(ctx, q, s.allEndpoints)
	case "HcnEnumerateLoadBalancers":
		return s.enumerate(ctx, q, s.allLoadBalancers)
	case "HcnOpenNetwork":
		return s.openIn(ctx, q, s.allNetworks)
	case "HcnOpenEndpoint":
		return s.openIn(ctx, q, s.allEndpoints)
	case "HcnOpenLoadBalancer":
		return s.openIn(ctx, q, s.allLoadBalancers)
	case "HcnQueryNetworkProperties":
		return s.query(ctx, q, s.allNetworks)
	case "HcnQueryEndpointProperties":
		return s.query(ctx, q, s.allEndpoints)
	case "HcnQueryLoadBalancerProperties":
		return s.query(ctx, q, s.allLoadBalancers)
	case "HcnCloseNetwork", "HcnCloseEndpoint", "HcnCloseLoadBalancer":
		if _, err := s.handle(q); err != nil {
			return answer{}, err
		}
		delete(s.handles, q.handle)
		return answer{}, nil
	}
	return s.change(ctx, q)
}

// change calls a function that changes objects.
func (s *server) change(ctx context.Context, q request) (answer, error) {
	switch q.function {
	case "HcnCreateEndpoint":
		network, err := s.handle(q)
		if err != nil {
			return answer{}, err
		}
		var e endpoint
		if err := json.Unmarshal([]byte(q.text[0]), &e); err != nil {
			return answer{}, err
		}
		e.HostComputeNetwork = network
		id, err := s.service.CreateEndpoint(ctx, e.ours())
		return s.opened(id, err)
	case "HcnCreateLoadBalancer", "HcnModifyLoadBalancer":
		var l loadBalancer
		if err := json.Unmarshal([]byte(q.text[0]), &l); err != nil {
			return answer{}, err
		}
		if q.function == "HcnCreateLoadBalancer" {
			id, err := s.service.CreateLoadBalancer(ctx, l.ours())
			return s.opened(id, err)
		}
		id, err := s.handle(q)
		if err != nil {
			return answer{}, err
		}
		return answer{}, s.service.UpdateLoadBalancer(ctx, id, l.ours())
	case "HcnDeleteEndpoint":
		return answer{}, s.service.DeleteEndpoint(ctx, q.id)
	case "HcnDeleteLoadBalancer":
		return answer{}, s.service.DeleteLoadBalancer(ctx, q.id)
	}
	return answer{}, hns.ErrUnsupported
}

// hnsCall answers the older interface, which is still used to query versions.
func (s *server) hnsCall(ctx context.Context, request string) (answer, error) {
	switch request {
	case "GET /globals/version":
		f, err := s.service.Features(ctx)
		v := versionWith(f)
		return answer{out: fmt.Sprintf(`{"Success":true,"Output":{"Major":%d,"Minor":%d}}`, v.Major, v.Minor)}, err
	case "GET /policylists/":
		return answer{out: `{"Success":true,"Output":[]}`}, nil
	}
	return answer{}, hns.ErrUnsupported
}

// objects maps the IDs of all objects of a kind to what is marshalled as JSON. The filter of an
// enumeration refers to the attributes.
type objects map[string]described

type described struct {
	attributes map[string]string
	properties any
}

func (s *server) allNetworks(ctx context.Context) (objects, error) {
	all := objects{}
	for _, name := range s.networks {
		n, err := s.service.Network(ctx, name)
		if errors.Is(err, hns.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all[n.ID] = described{map[string]string{"ID": n.ID, "Name": n.Name}, networkOf(n)}
	}
	return all, nil
}

func (s *server) allEndpoints(ctx context.Context) (objects, error) {
	list, err := s.service.Endpoints(ctx)
	all := objects{}
	for id, e := range list {
		all[id] = described{map[string]string{"ID": id, "Name": e.Name, "VirtualNetwork": e.Network}, endpointOf(id, e)}
	}
	return all, err
}

func (s *server) allLoadBalancers(ctx context.Context) (objects, error) {
	list, err := s.service.LoadBalancers(ctx)
	all := objects{}
	for id, l := range list {
		all[id] = described{map[string]string{"ID": id}, loadBalancerOf(id, l)}
	}
	return all, err
}

type lister func(context.Context) (objects, error)

// enumerate lists the IDs of the objects that match the filter.
func (s *server) enumerate(ctx context.Context, q request, list lister) (answer, error) {
	var query struct{ Filter string }
	filter := map[string]string{}
	if err := json.Unmarshal([]byte(q.text[0]), &query); err != nil {
		return answer{}, err
	}
	if query.Filter != "" {
		if err := json.Unmarshal([]byte(query.Filter), &filter); err != nil {
			return answer{}, err
		}
	}
	all, err := list(ctx)
	if err != nil {
		return answer{}, err
	}
	ids := []string{}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		matches := true
		for field, want := range filter {
			matches = matches && strings.EqualFold(all[id].attributes[field], want)
		}
		if matches {
			ids = append(ids, strings.ToUpper(id))
		}
	}
	return asJSON(ids)
}

func (s *server) openIn(ctx context.Context, q request, list lister) (answer, error) {
	all, err := list(ctx)
	if err != nil {
		return answer{}, err
	}
	if _, ok := all[q.id]; !ok {
		return answer{}, hns.ErrNotFound
	}
	return s.open(q.id), nil
}

func (s *server) query(ctx context.Context, q request, list lister) (answer, error) {
	id, err := s.handle(q)
	if err != nil {
		return answer{}, err
	}
	all, err := list(ctx)
	if err != nil {
		return answer{}, err
	}
	o, ok := all[id]
	if !ok {
		return answer{}, hns.ErrNotFound
	}
	return asJSON(o.properties)
}

// handle returns the ID of the object that the request's handle refers to.
func (s *server) handle(q request) (string, error) {
	id, ok := s.handles[q.handle]
	if !ok {
		return "", fmt.Errorf("%s: %d is no handle", q.function, q.handle)
	}
	return id, nil
}

// open returns a new handle for an object.
func (s *server) open(id string) answer {
	s.lastHandle++
	s.handles[s.lastHandle] = id
	return answer{handle: s.lastHandle}
}

// opened returns a new handle for a created object.
func (s *server) opened(id string, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	return s.open(id), nil
}

func asJSON(v any) (answer, error) {
	text, err := json.Marshal(v)
	return answer{out: string(text)}, err
}

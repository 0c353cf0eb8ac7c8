package manifest

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"sluice/internal/source"
)

// delivery remembers what the handler has and sends it the differences.
type delivery struct {
	services *source.ServiceConfig
	slices   *source.EndpointSliceConfig
	nodes    *source.NodeConfig
	cidrs    *source.ServiceCIDRConfig

	have []entry // as delivered, in order
}

func newDelivery(nodeName string, h source.Handler) *delivery {
	d := &delivery{
		services: source.NewServiceConfig(), slices: source.NewEndpointSliceConfig(),
		nodes: source.NewNodeConfig(nodeName), cidrs: source.NewServiceCIDRConfig(),
	}
	d.services.RegisterEventHandler(h)
	d.slices.RegisterEventHandler(h)
	d.nodes.RegisterEventHandler(h)
	d.cidrs.RegisterEventHandler(h)
	return d
}

// synced says that all there was at the start has been delivered.
func (d *delivery) synced() {
	d.nodes.Synced()
	d.cidrs.Synced()
	d.services.Synced()
	d.slices.Synced()
}

// update makes the handler have what is wanted. Objects that are gone go
// first: their addresses may be another's now. It stops when ctx ends.
func (d *delivery) update(ctx context.Context, want []entry) {
	old := make(map[objectID]entry, len(d.have))
	for _, e := range d.have {
		old[e.id] = e
	}
	wanted := make(map[objectID]bool, len(want))
	for _, e := range want {
		wanted[e.id] = true
	}
	for _, e := range d.have {
		if !wanted[e.id] && ctx.Err() == nil {
			d.send(e.object, nil)
		}
	}
	want = slices.Clone(want)
	for i, e := range want {
		before := old[e.id].object
		if before == e.object || equality.Semantic.DeepEqual(before, e.object) {
			want[i].object = before
		} else if ctx.Err() == nil {
			d.send(before, e.object)
		}
	}
	d.have = want
}

// send passes on one step of one object; nil is an object that is not there.
func (d *delivery) send(old, cur any) {
	some := cur
	if some == nil {
		some = old
	}
	switch some.(type) {
	case *v1.Service:
		pass[*v1.Service](d.services, old, cur)
	case *discoveryv1.EndpointSlice:
		pass[*discoveryv1.EndpointSlice](d.slices, old, cur)
	case *v1.Node:
		pass[*v1.Node](d.nodes, old, cur)
	case *networkingv1.ServiceCIDR:
		pass[*networkingv1.ServiceCIDR](d.cidrs, old, cur)
	default:
		panic(fmt.Sprintf("manifest: an entry holds a %T", some))
	}
}

// sink is the side of a Config that takes events.
type sink[T any] interface {
	Add(obj T)
	Update(old, cur T)
	Delete(obj T)
}

func pass[T any](to sink[T], old, cur any) {
	switch {
	case old == nil:
		to.Add(cur.(T))
	case cur == nil:
		to.Delete(old.(T))
	default:
		to.Update(old.(T), cur.(T))
	}
}

package manifest

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/source"
)

// delivery remembers what the handler has and sends it the differences.
type delivery struct {
	configs map[string]config // by kind
	have    []entry           // as delivered, in order
	known   map[objectID]bool // which of them the handler wants
}

func newDelivery(nodeName string, h source.Handler) *delivery {
	return &delivery{known: map[objectID]bool{}, configs: map[string]config{
		"Service":       configOf(source.NewServiceConfig(h)),
		"EndpointSlice": configOf(source.NewEndpointSliceConfig(h)),
		"Node":          configOf(source.NewNodeConfig(nodeName, h)),
		"ServiceCIDR":   configOf(source.NewServiceCIDRConfig(h)),
	}}
}

// config is the Config of one kind with the kind taken out of its signatures.
type config struct {
	set    func(known bool, old, cur metav1.Object) bool
	forget func(metav1.Object)
	synced func()
}

func configOf[T metav1.Object](c *source.Config[T]) config {
	return config{
		set: func(known bool, old, cur metav1.Object) bool {
			before, _ := old.(T) // nothing when it is new
			return c.Set(known, before, cur.(T))
		},
		forget: func(obj metav1.Object) { c.Forget(obj.(T)) },
		synced: c.Synced,
	}
}

// synced says that all there was at the start has been delivered.
func (d *delivery) synced() {
	for _, kind := range []string{"Node", "ServiceCIDR", "Service", "EndpointSlice"} {
		d.configs[kind].synced()
	}
}

// update makes the handler have what is wanted. Objects that are gone go
// first: their addresses may be another's now. It stops when ctx ends.
func (d *delivery) update(ctx context.Context, want []entry) {
	wanted := make(map[objectID]bool, len(want))
	for _, e := range want {
		wanted[e.id] = true
	}
	old := make(map[objectID]metav1.Object, len(d.have))
	for _, e := range d.have {
		old[e.id] = e.object
		if wanted[e.id] || ctx.Err() != nil {
			continue
		}
		if d.known[e.id] {
			d.configs[e.id.kind].forget(e.object)
		}
		delete(d.known, e.id)
	}
	for _, e := range want {
		before := old[e.id]
		if ctx.Err() == nil && before != e.object && !equality.Semantic.DeepEqual(before, e.object) {
			d.known[e.id] = d.configs[e.id.kind].set(d.known[e.id], before, e.object)
		}
	}
	d.have = want
}

package manifest

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/source"
)

// delivery passes objects on to the Configs of their kinds.
type delivery map[string]config

// config is a Config with the kind taken out of its signatures.
type config struct {
	set    func(metav1.Object)
	retain func(map[types.NamespacedName]bool)
	synced func()
}

func configOf[T source.Object](c *source.Config[T]) config {
	return config{func(obj metav1.Object) { c.Set(obj.(T)) }, c.Retain, c.Synced}
}

func newDelivery(nodeName string, h source.Handler) delivery {
	return delivery{
		"Service":       configOf(source.NewServiceConfig(h)),
		"EndpointSlice": configOf(source.NewEndpointSliceConfig(h)),
		"Node":          configOf(source.NewNodeConfig(nodeName, h)),
		"ServiceCIDR":   configOf(source.NewServiceCIDRConfig(h)),
	}
}

// update makes the handler have these objects. Those that are gone go first:
// their addresses may be another's now.
func (d delivery) update(entries []entry) {
	names := map[string]map[types.NamespacedName]bool{"Service": {}, "EndpointSlice": {}, "Node": {}, "ServiceCIDR": {}}
	for _, e := range entries {
		names[e.id.kind][source.NameOf(e.object)] = true
	}
	for kind, c := range d {
		c.retain(names[kind])
	}
	for _, e := range entries {
		d[e.id.kind].set(e.object)
	}
}

// synced says that all there was at the start has been delivered.
func (d delivery) synced() {
	for _, kind := range slices.Sorted(maps.Keys(d)) {
		d[kind].synced()
	}
}

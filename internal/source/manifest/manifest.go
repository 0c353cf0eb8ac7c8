package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice/internal/apiobject"
	"sluice/internal/source"
)

// kinds are the objects that are read.
var kinds = map[string]struct {
	apiVersion string // the only one that is read
	namespaced bool
	empty      func() metav1.Object
}{
	"Service":       {"v1", true, func() metav1.Object { return &v1.Service{} }},
	"EndpointSlice": {"discovery.k8s.io/v1", true, func() metav1.Object { return &discoveryv1.EndpointSlice{} }},
	"Node":          {"v1", false, func() metav1.Object { return &v1.Node{} }},
	"ServiceCIDR":   {"networking.k8s.io/v1", false, func() metav1.Object { return &networkingv1.ServiceCIDR{} }},
}

// objectID tells objects apart. The namespace is empty for a kind without one.
type objectID struct{ kind, namespace, name string }

// String returns the kind and the name, as far as they are known.
func (id objectID) String() string {
	if id.name == "" {
		return id.kind
	}
	return id.kind + " " + strings.TrimPrefix(id.namespace+"/"+id.name, "/")
}

// entry is one object, checked and trimmed.
type entry struct {
	id     objectID
	object metav1.Object
	from   Problem // where it is; it has no reason
}

// Load reads a folder once and returns its objects in the order of files and
// documents. They are checked and trimmed and not yet filtered, so there may be
// headless Services and Nodes of any name. Objects that are wrong are named among
// the problems; the error is for a folder that cannot be read.
func Load(dir string) ([]metav1.Object, []Problem, error) {
	f := newFolder(dir)
	if err := f.scan(false); err != nil {
		return nil, nil, fmt.Errorf("read manifest folder %s: %w", dir, bare(err))
	}
	entries, problems := f.merged()
	sortProblems(problems)
	objects := make([]metav1.Object, len(entries))
	for i, e := range entries {
		objects[i] = e.object
	}
	return objects, problems, nil
}

// trim takes out of an object what is large in dumps of a cluster and not read,
// since a source holds all it has read.
func trim(obj metav1.Object) {
	obj.SetManagedFields(nil)
	read := []string{v1.EndpointsLastChangeTriggerTime, apiobject.LoadBalancing, apiobject.Weight, apiobject.PreserveDestination}
	maps.DeleteFunc(obj.GetAnnotations(), func(name, _ string) bool { return !slices.Contains(read, name) })
	if node, ok := obj.(*v1.Node); ok {
		node.Status = v1.NodeStatus{Addresses: node.Status.Addresses}
	}
}

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

func (d delivery) synced() {
	for _, kind := range slices.Sorted(maps.Keys(d)) {
		d[kind].synced()
	}
}

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

// kinds are the kinds of objects that are read.
var kinds = map[string]struct {
	apiVersion string // the only supported one
	namespaced bool
	empty      func() metav1.Object
}{
	"Service":       {"v1", true, func() metav1.Object { return &v1.Service{} }},
	"EndpointSlice": {"discovery.k8s.io/v1", true, func() metav1.Object { return &discoveryv1.EndpointSlice{} }},
	"Node":          {"v1", false, func() metav1.Object { return &v1.Node{} }},
	"ServiceCIDR":   {"networking.k8s.io/v1", false, func() metav1.Object { return &networkingv1.ServiceCIDR{} }},
}

// objectID identifies an object. The namespace is empty for a kind without namespaces.
type objectID struct{ kind, namespace, name string }

// String returns the kind, and the name if it is known.
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
	from   Problem // its place, as a Problem without a reason
}

// Load reads a folder once and returns its objects, in the order of files and documents.
// They are checked and trimmed, but not filtered: there may be headless Services, and
// Nodes of any name. Invalid objects are left out and have problems. It returns an error
// if the folder cannot be read.
func Load(dir string) ([]metav1.Object, []Problem, error) {
	f := newFolder(dir)
	if err := f.scan(false); err != nil {
		return nil, nil, fmt.Errorf("read manifest folder %s: %w", dir, withoutPath(err))
	}
	entries, problems := f.merged()
	sortProblems(problems)
	objects := make([]metav1.Object, len(entries))
	for i, e := range entries {
		objects[i] = e.object
	}
	return objects, problems, nil
}

// trim removes from an object what is not used and often large, since the source keeps
// all objects in memory.
func trim(obj metav1.Object) {
	obj.SetManagedFields(nil)
	read := []string{v1.EndpointsLastChangeTriggerTime, apiobject.LoadBalancing, apiobject.Weight, apiobject.PreserveDestination}
	maps.DeleteFunc(obj.GetAnnotations(), func(name, _ string) bool { return !slices.Contains(read, name) })
	if node, ok := obj.(*v1.Node); ok {
		node.Status = v1.NodeStatus{Addresses: node.Status.Addresses}
	}
}

// delivery passes objects to the Configs of their kinds.
type delivery map[string]config

// config has the methods of a source.Config of any kind.
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

// update delivers these objects, and deletes all others. Deletions come first, because
// other objects may have the addresses now.
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

package manifest

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice/internal/source"
)

// Settings says what to read.
type Settings struct {
	Dir      string // the folder; it must exist when Run begins
	NodeName string // of the only Node that is delivered
}

// New returns the Source that reads and watches a folder.
func New(s Settings) source.Source { return folderSource(s) }

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

// Objects is what one reading found, in the order of files and documents. All
// objects are checked and trimmed; they are not yet filtered, so there may be
// headless Services and Nodes of any name.
type Objects struct {
	Services       []*v1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	Nodes          []*v1.Node
	ServiceCIDRs   []*networkingv1.ServiceCIDR
}

// Load reads a folder once. Objects that are wrong are missing from the result
// and named among the problems; the error is for a folder that cannot be read.
func Load(dir string) (*Objects, []Problem, error) {
	f := newFolder(dir)
	if err := f.scan(false); err != nil {
		return nil, nil, fmt.Errorf("read manifest folder %s: %w", dir, bare(err))
	}
	entries, problems := f.merged()
	sortProblems(problems)
	return &Objects{
		objectsOf[*v1.Service](entries), objectsOf[*discoveryv1.EndpointSlice](entries),
		objectsOf[*v1.Node](entries), objectsOf[*networkingv1.ServiceCIDR](entries),
	}, problems, nil
}

func objectsOf[T metav1.Object](entries []entry) []T {
	var out []T
	for _, e := range entries {
		if obj, ok := e.object.(T); ok {
			out = append(out, obj)
		}
	}
	return out
}

// trim takes out of an object what is large in dumps of a cluster and not read,
// since a source holds all it has read.
func trim(obj metav1.Object) {
	obj.SetManagedFields(nil)
	trigger, ok := obj.GetAnnotations()[v1.EndpointsLastChangeTriggerTime]
	obj.SetAnnotations(nil)
	if ok {
		obj.SetAnnotations(map[string]string{v1.EndpointsLastChangeTriggerTime: trigger})
	}
	if node, ok := obj.(*v1.Node); ok {
		node.Status = v1.NodeStatus{Addresses: node.Status.Addresses}
	}
}

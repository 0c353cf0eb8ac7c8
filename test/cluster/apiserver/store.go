package apiserver

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// object is an API object. One that is in the store is not changed any more.
type object interface {
	runtime.Object
	metav1.Object
}

// key names an object of a kind.
type key struct{ namespace, name string }

func keyOf(o object) key { return key{o.GetNamespace(), o.GetName()} }

// event is what happened to an object. The older of its two states is nil if it
// is new, the newer one if it is gone.
type event struct{ old, cur object }

// collection is the objects of one kind, and all that ever happened to them.
type collection struct {
	objects map[key]object
	events  []event
	before  []int         // the version of the server before each event
	changed chan struct{} // closed with the next event
}

// store is all objects.
type store struct {
	mu      sync.Mutex
	version int
	kinds   map[string]*collection // by the path of the kind
	free    allocator
}

func (s *store) of(path string) *collection {
	if s.kinds[path] == nil {
		s.kinds[path] = &collection{objects: map[key]object{}, changed: make(chan struct{})}
	}
	return s.kinds[path]
}

// put adds or replaces an object. The lock must be held.
func (s *store) put(path string, o object) {
	c := s.of(path)
	if svc, ok := o.(*v1.Service); ok {
		s.free.complete(svc)
	}
	if kinds, _, err := scheme.Scheme.ObjectKinds(o); err == nil {
		o.GetObjectKind().SetGroupVersionKind(kinds[0]) // the binary form needs it
	}
	old := c.objects[keyOf(o)]
	c.objects[keyOf(o)] = o
	s.tell(c, event{old, o})
	o.SetResourceVersion(strconv.Itoa(s.version))
}

// remove deletes objects. The lock must be held.
func (s *store) remove(path string, which func(object) bool) {
	c := s.of(path)
	for k, o := range c.objects {
		if which(o) {
			delete(c.objects, k)
			last := o.DeepCopyObject().(object) // with a version of its own, from which a watch goes on
			s.tell(c, event{old: last})
			last.SetResourceVersion(strconv.Itoa(s.version))
		}
	}
}

func (s *store) tell(c *collection, e event) {
	c.events, c.before = append(c.events, e), append(c.before, s.version)
	s.version++
	close(c.changed)
	c.changed = make(chan struct{})
}

// since returns the number of the first event after a version.
func (c *collection) since(version int) int {
	i, _ := slices.BinarySearch(c.before, version)
	return i
}

// selector is what a client wants to hear of.
type selector struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func readSelector(namespace string, r *http.Request) (s selector, err error) {
	q := r.URL.Query()
	s.namespace = namespace
	if s.labels, err = labels.Parse(q.Get("labelSelector")); err == nil {
		s.fields, err = fields.ParseSelector(q.Get("fieldSelector"))
	}
	return s, err
}

func (s selector) matches(o object) bool {
	if o == nil || s.namespace != "" && o.GetNamespace() != s.namespace {
		return false
	}
	return s.labels.Matches(labels.Set(o.GetLabels())) && s.fields.Matches(fieldsOf{o})
}

// fieldsOf are the fields of an object that can be selected by.
type fieldsOf struct{ object }

func (f fieldsOf) Has(name string) bool { return f.Get(name) != "" }

func (f fieldsOf) Get(name string) string {
	if svc, ok := f.object.(*v1.Service); ok && name == "spec.clusterIP" {
		return svc.Spec.ClusterIP
	}
	if name == "metadata.name" {
		return f.GetName()
	}
	return ""
}

// seen returns what an event looks like to a client; nothing if it is not for it.
func (s selector) seen(e event) (watch.EventType, object) {
	was, is := s.matches(e.old), s.matches(e.cur)
	switch {
	case was && is:
		return watch.Modified, e.cur
	case is:
		return watch.Added, e.cur
	case was:
		return watch.Deleted, e.old
	default:
		return "", nil
	}
}

// list returns all objects that a client wants, sorted. The lock must be held.
func (s selector) list(c *collection) (out []runtime.Object) {
	for _, o := range c.objects {
		if s.matches(o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b runtime.Object) int {
		x, y := keyOf(a.(object)), keyOf(b.(object))
		return cmp.Or(strings.Compare(x.namespace, y.namespace), strings.Compare(x.name, y.name))
	})
	return out
}

// newList makes the list of a kind as an answer. The lock must be held.
func (s *store) newList(kind schema.GroupVersionKind, items []runtime.Object) (runtime.Object, error) {
	kind.Kind += "List"
	list, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil, err
	}
	list.GetObjectKind().SetGroupVersionKind(kind)
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	m.SetResourceVersion(strconv.Itoa(s.version))
	return list, meta.SetList(list, items)
}

// bookmark returns an object that says that all there are have been sent. The lock
// must be held.
func (s *store) bookmark(kind schema.GroupVersionKind) (runtime.Object, error) {
	made, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil, err
	}
	o := made.(object)
	o.GetObjectKind().SetGroupVersionKind(kind)
	o.SetResourceVersion(strconv.Itoa(s.version))
	o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return o, nil
}

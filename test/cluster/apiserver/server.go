package apiserver

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// kinds are those that can be asked for, by the names that paths have.
var kinds = map[string]string{
	"services": "Service", "endpointslices": "EndpointSlice", "nodes": "Node", "servicecidrs": "ServiceCIDR",
	"namespaces": "Namespace", "events": "Event", "clusterrolebindings": "ClusterRoleBinding", "ipaddresses": "IPAddress",
}

// Server is an http.Handler that serves objects. Its methods may be called by any
// goroutine.
type Server struct {
	store  store
	frames sync.Map // what was loaded, as binary watches send that it was added: map[runtime.Object][]byte
}

// New returns a server without objects. Services get addresses of these networks,
// one of each family.
func New(serviceCIDRs []netip.Prefix) *Server {
	return &Server{store: store{version: 1, kinds: map[string]*collection{}, free: newAllocator(serviceCIDRs)}}
}

// Load adds or replaces an object that is encoded in either form. It is encoded for
// watches here and now: a real server is on another machine, and its work is not to
// be a part of what is measured on this one.
func (s *Server) Load(text []byte) error {
	o, kind, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return fmt.Errorf("read an object: %w", err)
	}
	path := "/apis/" + kind.GroupVersion().String() + "/"
	if kind.Group == "" {
		path = "/api/" + kind.Version + "/"
	}
	for resource, name := range kinds {
		if name == kind.Kind {
			s.store.mu.Lock()
			defer s.store.mu.Unlock()
			s.store.put(path+resource, o.(object))
			frame, err := addedFrame(o)
			s.frames.Store(o, frame)
			return err
		}
	}
	return fmt.Errorf("read an object: kind %s cannot be served", kind.Kind)
}

// request is what a client asks for.
type request struct {
	kind     schema.GroupVersionKind
	path     string // of the kind
	key             // an empty name stands for all objects; an empty namespace for all namespaces
	resource schema.GroupResource
}

// parse reads the path of a request: [/api/v1 | /apis/GROUP/VERSION] and then
// [/namespaces/NAMESPACE]/KIND[/NAME[/status]].
func parse(path string) (q request, ok bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		q.kind.Version = parts[1]
		q.path, parts = "/api/"+parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		q.kind.Group, q.kind.Version = parts[1], parts[2]
		q.path, parts = "/apis/"+parts[1]+"/"+parts[2], parts[3:]
	default:
		return q, false
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		q.namespace, parts = parts[1], parts[2:]
	}
	q.path += "/" + parts[0]
	q.resource = schema.GroupResource{Group: q.kind.Group, Resource: parts[0]}
	if len(parts) > 1 {
		q.name = parts[1]
	}
	q.kind.Kind, ok = kinds[parts[0]]
	return q, ok
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, ok := parse(r.URL.Path)
	var err error
	switch {
	case !ok:
		err = apierrors.NewNotFound(q.resource, r.URL.Path)
	case r.Method == http.MethodGet && q.name == "" && r.URL.Query().Get("watch") != "":
		err = s.watch(w, r, q)
	case r.Method == http.MethodGet && q.name == "":
		err = s.list(w, r, q)
	case r.Method == http.MethodGet:
		err = s.get(w, r, q)
	case r.Method == http.MethodDelete:
		err = s.remove(w, r, q)
	default:
		err = s.write(w, r, q)
	}
	if err != nil {
		refuse(w, r, err)
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, q request) error {
	s.store.mu.Lock()
	o := s.store.of(q.path).objects[q.key]
	s.store.mu.Unlock()
	if o == nil {
		return apierrors.NewNotFound(q.resource, q.name)
	}
	return answer(w, r, http.StatusOK, o)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, q request) error {
	which, err := readSelector(q.namespace, r)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	s.store.mu.Lock()
	list, err := s.store.newList(q.kind, which.list(s.store.of(q.path)))
	s.store.mu.Unlock()
	if err != nil {
		return err
	}
	return answer(w, r, http.StatusOK, list)
}

// write creates or replaces an object, as the method says.
func (s *Server) write(w http.ResponseWriter, r *http.Request, q request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, &q.kind, nil)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	o, ok := decoded.(object)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("%T is no object", decoded))
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(q.namespace)
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	exists := s.store.of(q.path).objects[keyOf(o)] != nil
	switch {
	case exists && r.Method == http.MethodPost:
		return apierrors.NewAlreadyExists(q.resource, o.GetName())
	case !exists && r.Method == http.MethodPut:
		return apierrors.NewNotFound(q.resource, o.GetName())
	}
	s.store.put(q.path, o)
	return answer(w, r, http.StatusCreated, o)
}

// remove deletes one object, or all that there are.
func (s *Server) remove(w http.ResponseWriter, r *http.Request, q request) error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if q.name != "" && s.store.of(q.path).objects[q.key] == nil {
		return apierrors.NewNotFound(q.resource, q.name)
	}
	s.store.remove(q.path, func(o object) bool {
		return (q.namespace == "" || o.GetNamespace() == q.namespace) && (q.name == "" || o.GetName() == q.name)
	})
	return answer(w, r, http.StatusOK, &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess,
	})
}

// form returns the form that a client wants its answers in.
func form(r *http.Request) runtime.SerializerInfo {
	wanted := runtime.ContentTypeJSON
	if strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		wanted = runtime.ContentTypeProtobuf
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), wanted)
	return info
}

func answer(w http.ResponseWriter, r *http.Request, code int, o runtime.Object) error {
	f := form(r)
	body, err := runtime.Encode(f.Serializer, o)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	w.Header().Set("Content-Type", f.MediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that has gone does not concern anyone else
	return nil
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	var status apierrors.APIStatus = apierrors.NewInternalError(err)
	if s, ok := err.(apierrors.APIStatus); ok {
		status = s
	}
	out := status.Status()
	out.APIVersion, out.Kind = "v1", "Status"
	_ = answer(w, r, int(out.Code), &out)
}

package manifest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"sluice/internal/apiobject"
)

// reading is what was found in one file.
type reading struct {
	file     string
	entries  []entry
	problems []Problem
	// complete says that nothing was refused: what is not among the entries is
	// not in the file.
	complete bool
	ignored  map[string]bool // kinds
}

func read(file string, data []byte) reading {
	r := reading{file: file, complete: true, ignored: map[string]bool{}}
	for _, d := range split(file, data) {
		it := &item{r: &r, d: d}
		raw, err := d.toJSON()
		switch {
		case err != nil:
			line, reason := d.explain(err)
			it.refuse("", "%s", reason)
			r.problems[len(r.problems)-1].Line = line
		case string(bytes.TrimSpace(raw)) == "null" || !it.head(raw):
		case strings.HasSuffix(it.id.kind, "List"):
			it.list(raw)
		default:
			it.read(raw)
		}
	}
	return r
}

// item is one object while it is read. Its methods collect problems; the
// fields they take are relative to the object.
type item struct {
	r          *reading
	d          *document
	at         string // the object's field in the document; empty: it is the document
	id         objectID
	apiVersion string
	refused    bool // the object is wrong; what it was before stays
}

// head finds out what the object is, before its type is known. The kind and the
// version of a List's item may be known.
func (it *item) head(raw []byte) bool {
	var h struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
		Metadata   struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
	}
	h.Kind, h.APIVersion = it.id.kind, it.apiVersion
	err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &h)
	it.id, it.apiVersion = objectID{kind: h.Kind}, h.APIVersion
	switch {
	case err != nil:
		it.wrongType(raw, &h, err)
	case h.Kind == "":
		it.refuse("kind", "is missing")
	case h.APIVersion == "":
		it.refuse("apiVersion", "is missing")
	default:
		it.id.name = h.Metadata.Name
		if kinds[h.Kind].namespaced {
			it.id.namespace = cmp.Or(h.Metadata.Namespace, v1.NamespaceDefault)
		}
	}
	return !it.refused
}

// list reads the objects of a List or of a ServiceList and its like, whose
// items need not name their kind.
func (it *item) list(raw []byte) {
	inherited := item{r: it.r, d: it.d}
	if kind := strings.TrimSuffix(it.id.kind, "List"); kind != "" {
		inherited.id.kind, inherited.apiVersion = kind, it.apiVersion
		if kinds[kind].empty == nil {
			it.ignore()
			return
		}
	}
	for _, field := range it.d.twice {
		if !strings.HasPrefix(field, "items[") {
			it.refuse(field, "is set twice")
		}
	}
	var list struct {
		metav1.TypeMeta
		Metadata json.RawMessage   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if it.decode(raw, &list); it.refused {
		return
	}
	for i, element := range list.Items {
		inner := inherited
		inner.at = fmt.Sprintf("items[%d]", i)
		switch {
		case !inner.head(element):
		case strings.HasSuffix(inner.id.kind, "List"):
			inner.refuse("kind", "a List inside a List is not read")
		default:
			inner.read(element)
		}
	}
}

// read reads one object and adds it to the reading, unless it is refused.
func (it *item) read(raw []byte) {
	kind, known := kinds[it.id.kind]
	group := schema.FromAPIVersionAndKind(it.apiVersion, it.id.kind).Group
	switch {
	case !known, !slices.Contains([]string{"", discoveryv1.GroupName, networkingv1.GroupName}, group):
		it.ignore() // It may be of another API that happens to use the same word.
		return
	case it.apiVersion != kind.apiVersion:
		it.refuse("apiVersion", "%.60q is not read, %s needs %s", it.apiVersion, it.id.kind, kind.apiVersion)
		return
	}
	for _, field := range it.d.twice {
		if inside, ok := strings.CutPrefix(field, it.at); ok && (it.at == "" || strings.HasPrefix(inside, ".")) {
			it.refuse(strings.TrimPrefix(inside, "."), "is set twice")
		}
	}
	obj := kind.empty()
	if it.decode(raw, obj); it.refused {
		return
	}
	obj.SetNamespace(it.id.namespace)
	for _, p := range apiobject.Check(obj) {
		it.refused = it.refused || p.Level == apiobject.Invalid
		it.add(Problem{Field: p.Field, Reason: p.Reason, Note: p.Level == apiobject.Note})
	}
	if it.refused {
		it.r.complete = false
		return
	}
	trim(obj)
	sum := sha256.Sum256(raw)
	obj.SetResourceVersion(hex.EncodeToString(sum[:16])) // By it a Config knows what has changed.
	from := Problem{File: it.r.file, Document: it.d.number, Line: it.d.begin, Object: it.id.String(), Field: it.at}
	it.r.entries = append(it.r.entries, entry{it.id, obj, from})
}

// decode reads a JSON object into a typed one as the API server would: names
// are case sensitive, types must fit. It refuses the item when a type is wrong
// or a key is repeated, and complains about a name that the type does not have.
func (it *item) decode(raw []byte, into any) {
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		it.wrongType(raw, into, err)
	}
	for _, finding := range strict {
		var at kjson.FieldError
		switch {
		case !errors.As(finding, &at):
			it.refuse("", "%v", finding)
		case strings.HasPrefix(finding.Error(), "duplicate"):
			it.refuse(at.FieldPath(), "is set twice")
		default:
			it.add(Problem{Field: at.FieldPath(), Reason: fmt.Sprintf("is ignored: %s has no such field", it.id.kind)})
		}
	}
}

// wrongType refuses an object that cannot be decoded.
func (it *item) wrongType(raw []byte, into any, err error) {
	// The decoder hides where it was, so the standard library's looks again.
	var wrong *json.UnmarshalTypeError
	if !errors.As(json.Unmarshal(raw, reflect.New(reflect.TypeOf(into).Elem()).Interface()), &wrong) {
		it.refuse("", "%s", strings.TrimPrefix(err.Error(), "json: "))
		return
	}
	if wrong.Field == "" {
		it.refuse("", "is not an object: a mapping with apiVersion, kind and metadata is needed")
		return
	}
	field, hint := locate(raw, wrong), ""
	if wrong.Type.Kind() == reflect.String && (wrong.Value == "bool" || wrong.Value == "number") {
		hint = "; put it in quotes" // YAML takes the names n, on and 10 for something else.
	}
	wrong.Struct, wrong.Field = "", "" // The problem names the field.
	it.refuse(field, "%s%s", strings.TrimPrefix(wrong.Error(), "json: "), hint)
}

// locate returns the field of a decoding error with its places in lists, which
// the error does not have: it is the first one with a value of the wrong type.
func locate(raw []byte, wrong *json.UnmarshalTypeError) string {
	var find func(value any, rest, at string) string
	find = func(value any, rest, at string) string {
		switch value := value.(type) {
		case map[string]any:
			if key, rest, _ := strings.Cut(rest, "."); key != "" {
				return find(value[key], rest, join(at, key))
			}
		case []any:
			for i, e := range value {
				if found := find(e, rest, fmt.Sprintf("%s[%d]", at, i)); found != "" {
					return found
				}
			}
		}
		text, err := json.Marshal(value)
		if rest != "" || err != nil || json.Unmarshal(text, reflect.New(wrong.Type).Interface()) == nil {
			return ""
		}
		return at
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return wrong.Field
	}
	return cmp.Or(find(tree, wrong.Field, ""), wrong.Field)
}

// ignore notes once for each file and kind that such objects are not for us.
func (it *item) ignore() {
	what := it.apiVersion + " " + it.id.kind
	if !it.r.ignored[what] {
		it.r.ignored[what] = true
		it.id = objectID{kind: it.id.kind} // It is about the kind, not about this one.
		it.add(Problem{Note: true, Reason: fmt.Sprintf("%.60q is ignored: Service, EndpointSlice, Node and ServiceCIDR are read", what)})
	}
}

// refuse reports what makes the object unusable.
func (it *item) refuse(field, format string, args ...any) {
	it.refused, it.r.complete = true, false
	it.add(Problem{Field: field, Reason: fmt.Sprintf(format, args...)})
}

// add reports a problem whose field is relative to the object.
func (it *item) add(p Problem) {
	p.File, p.Document, p.Object, p.Field = it.r.file, it.d.number, it.id.String(), join(it.at, p.Field)
	p.Line = it.d.line(p.Field)
	it.r.problems = append(it.r.problems, p)
}

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

// reading is the content of one file.
type reading struct {
	file     string
	entries  []entry
	problems []Problem
	complete bool            // every object could be read, so entries has all objects of the file
	ignored  map[string]bool // kinds that have been reported as ignored
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
		case string(bytes.TrimSpace(raw)) == "null" || !it.readHeader(raw):
		case strings.HasSuffix(it.id.kind, "List"):
			it.list(raw)
		default:
			it.read(raw)
		}
	}
	return r
}

// item is one object while it is read. Its methods collect problems; fields that are
// passed to them are relative to the object.
type item struct {
	r          *reading
	d          *document
	at         string // the object's path in the document; empty if it is the whole document
	id         objectID
	apiVersion string
	refused    bool // the object is invalid, so that its last version stays in force
}

// readHeader reads the kind, version and name of an object, and reports whether they are
// valid. An item of a typed List may inherit the kind and version.
func (it *item) readHeader(raw []byte) bool {
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

// list reads the objects of a List, or of a typed list such as ServiceList, whose items
// need not have a kind.
func (it *item) list(raw []byte) {
	inherited := item{r: it.r, d: it.d}
	if kind := strings.TrimSuffix(it.id.kind, "List"); kind != "" {
		inherited.id.kind, inherited.apiVersion = kind, it.apiVersion
		if kinds[kind].empty == nil {
			it.ignore()
			return
		}
	}
	for _, field := range it.d.duplicates {
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
		case !inner.readHeader(element):
		case strings.HasSuffix(inner.id.kind, "List"):
			inner.refuse("kind", "a List in a List is not supported")
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
		it.ignore() // A kind of another API group may have the same name.
		return
	case it.apiVersion != kind.apiVersion:
		it.refuse("apiVersion", "%.60q is not supported, %s needs %s", it.apiVersion, it.id.kind, kind.apiVersion)
		return
	}
	for _, field := range it.d.duplicates {
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
	obj.SetResourceVersion(hex.EncodeToString(sum[:16])) // A Config detects changes by the version.
	from := Problem{File: it.r.file, Document: it.d.number, Line: it.d.begin, Object: it.id.String(), Field: it.at}
	it.r.entries = append(it.r.entries, entry{it.id, obj, from})
}

// decode decodes a JSON object as the API server would: names are case-sensitive, and
// types must match. It refuses the item if a type is wrong or a key is repeated. An
// unknown field is only a problem.
func (it *item) decode(raw []byte, into any) {
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		it.wrongType(raw, into, err)
	}
	for _, err := range strict {
		var at kjson.FieldError
		switch {
		case !errors.As(err, &at):
			it.refuse("", "%v", err)
		case strings.HasPrefix(err.Error(), "duplicate"):
			it.refuse(at.FieldPath(), "is set twice")
		default:
			it.add(Problem{Field: at.FieldPath(), Reason: fmt.Sprintf("is ignored: %s has no such field", it.id.kind)})
		}
	}
}

// wrongType refuses an object that cannot be decoded.
func (it *item) wrongType(raw []byte, into any, err error) {
	// The decoder does not report the field, but that of the standard library does.
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
		hint = "; put it in quotes" // In YAML, n and on are booleans, and 10 is a number.
	}
	wrong.Struct, wrong.Field = "", "" // The problem names the field.
	it.refuse(field, "%s%s", strings.TrimPrefix(wrong.Error(), "json: "), hint)
}

// locate returns the field of a decoding error with list indexes, which the error does
// not have. It is the first such field with a value of the wrong type.
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

// ignore adds a note that objects of the kind are ignored, once per file and kind.
func (it *item) ignore() {
	what := it.apiVersion + " " + it.id.kind
	if !it.r.ignored[what] {
		it.r.ignored[what] = true
		it.id = objectID{kind: it.id.kind} // The note is about the kind, not about this object.
		it.add(Problem{Note: true, Reason: fmt.Sprintf("%.60q is ignored: Service, EndpointSlice, Node and ServiceCIDR are read", what)})
	}
}

// refuse adds a problem that makes the object unusable.
func (it *item) refuse(field, format string, args ...any) {
	it.refused, it.r.complete = true, false
	it.add(Problem{Field: field, Reason: fmt.Sprintf(format, args...)})
}

// add adds a problem. Its field is relative to the object.
func (it *item) add(p Problem) {
	p.File, p.Document, p.Object, p.Field = it.r.file, it.d.number, it.id.String(), join(it.at, p.Field)
	p.Line = it.d.line(p.Field)
	it.r.problems = append(it.r.problems, p)
}

package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
)

// objectID tells objects apart. The namespace is empty for a kind without one.
type objectID struct{ kind, namespace, name string }

func (id objectID) String() string {
	if id.namespace == "" {
		return id.kind + " " + id.name
	}
	return id.kind + " " + id.namespace + "/" + id.name
}

// place is where in the folder an object is.
type place struct {
	file           string
	document, line int    // line is where the document begins
	at             string // the object's field in the document; empty: it is the document
}

func (p place) String() string {
	out := fmt.Sprintf("%s: document %d (line %d)", p.file, p.document, p.line)
	if p.at != "" {
		out += ": " + p.at
	}
	return out
}

// entry is one object, defaulted, checked and trimmed, and where it is from.
type entry struct {
	id     objectID
	object any // *v1.Service, *discoveryv1.EndpointSlice, *v1.Node or *networkingv1.ServiceCIDR
	from   place
}

// reading is what was found in one file.
type reading struct {
	entries  []entry
	problems []Problem
	// whole says that nothing was refused: what is not among the entries is not
	// in the file.
	whole bool
}

// reader reads one file.
type reader struct {
	file    string
	trim    *trimmer
	ignored map[string]bool
	out     reading
}

// read reads the text of one file.
func read(file string, data []byte, trim *trimmer) reading {
	r := &reader{file: file, trim: trim, ignored: map[string]bool{}, out: reading{whole: true}}
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	data = bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n"))
	data = bytes.ReplaceAll(data, []byte("\r"), []byte("\n"))

	docs, broken := splitYAML(data), (*syntaxError)(nil)
	if path.Ext(file) == ".json" {
		docs, broken = splitJSON(data)
	}
	for _, d := range docs {
		r.document(d)
	}
	if broken != nil {
		r.broken(&document{number: len(docs) + 1, begin: broken.line}, broken)
	}
	return r.out
}

func (r *reader) broken(d *document, err *syntaxError) {
	r.out.whole = false
	line := err.line
	if line == 0 {
		line = d.begin
	}
	r.out.problems = append(r.out.problems, Problem{
		File: r.file, Document: d.number, Line: line, Reason: err.reason,
	})
}

func (r *reader) document(d *document) {
	raw, twice, broken := d.toJSON()
	if broken != nil {
		r.broken(d, broken)
		return
	}
	if string(bytes.TrimSpace(raw)) == "null" {
		return
	}
	it := &item{r: r, d: d, twice: twice}
	if it.head(raw, metav1.TypeMeta{}) {
		if strings.HasSuffix(it.kind, "List") {
			r.list(it, raw)
		} else {
			r.object(it, raw)
		}
	}
}

// list reads the objects of a List or of a ServiceList and its like, whose
// items need not name their kind.
func (r *reader) list(it *item, raw []byte) {
	kind := strings.TrimSuffix(it.kind, "List")
	if kind != "" && versionOf(kind) == "" {
		r.ignore(it)
		return
	}
	for _, t := range it.twice {
		if !strings.HasPrefix(t.field, "items[") {
			it.refuse(t.field, "is set twice")
		}
	}
	list := decode[struct {
		metav1.TypeMeta
		Metadata json.RawMessage   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}](it, raw)
	if it.refused {
		return
	}
	for i, element := range list.Items {
		inner := &item{r: r, d: it.d, twice: it.twice, at: fmt.Sprintf("items[%d]", i)}
		inherit := metav1.TypeMeta{Kind: kind, APIVersion: it.apiVersion}
		if kind == "" {
			inherit = metav1.TypeMeta{}
		}
		if !inner.head(element, inherit) {
			continue
		}
		if strings.HasSuffix(inner.kind, "List") {
			inner.refuse("kind", "a List inside a List is not read")
			continue
		}
		r.object(inner, element)
	}
}

// versionOf returns the only version of a kind that is read; empty: the kind is
// not read.
func versionOf(kind string) string {
	switch kind {
	case "Service", "Node":
		return "v1"
	case "EndpointSlice":
		return "discovery.k8s.io/v1"
	case "ServiceCIDR":
		return "networking.k8s.io/v1"
	}
	return ""
}

func (r *reader) object(it *item, raw []byte) {
	want := versionOf(it.kind)
	if want == "" {
		r.ignore(it)
		return
	}
	if it.apiVersion != want {
		group := schema.FromAPIVersionAndKind(it.apiVersion, it.kind).Group
		if slices.Contains([]string{"", discoveryv1.GroupName, networkingv1.GroupName}, group) {
			it.refuse("apiVersion", "%s is not read, %s needs %s", quote(it.apiVersion), it.kind, want)
		} else {
			r.ignore(it) // Another API that happens to use the same word.
		}
		return
	}
	it.refuseRepeated()
	switch it.kind {
	case "Service":
		keep(it, raw, (*item).service, r.trim.Service)
	case "EndpointSlice":
		keep(it, raw, (*item).endpointSlice, r.trim.EndpointSlice)
	case "Node":
		keep(it, raw, (*item).node, r.trim.Node)
	case "ServiceCIDR":
		keep(it, raw, (*item).serviceCIDR, r.trim.ServiceCIDR)
	default:
		panic("manifest: no reader for kind " + it.kind)
	}
}

// ignore notes once for each file and kind that such objects are not for us.
func (r *reader) ignore(it *item) {
	what := it.apiVersion + " " + it.kind
	if !r.ignored[what] {
		r.ignored[what] = true
		it.id = objectID{kind: it.kind} // It is about the kind, not about this one.
		it.note("", "%s is ignored: Service, EndpointSlice, Node and ServiceCIDR are read", quote(what))
	}
}

// keep decodes an object, lets check default and check it, and adds what trim
// leaves of it to the reading, unless it was refused on the way.
func keep[T any](it *item, raw []byte, check func(*item, *T), trim func(*T) *T) {
	obj := decode[T](it, raw)
	if it.refused {
		return
	}
	if it.metadata(any(obj).(metav1.Object)); !it.refused {
		check(it, obj)
	}
	if it.refused || it.unused {
		return
	}
	it.r.out.entries = append(it.r.out.entries, entry{
		id: it.id, object: trim(obj), from: place{it.r.file, it.d.number, it.d.begin, it.at},
	})
}

// item is one object while it is read. Its methods collect problems; the
// fields they take are relative to the object.
type item struct {
	r     *reader
	d     *document
	at    string     // the object's field in the document; empty: it is the document
	twice []repeated // in the whole document

	kind, apiVersion string
	id               objectID // as far as it is known
	refused          bool     // the object is wrong; what it was before stays
	unused           bool     // the object is right and nothing to us
}

// head finds out what the object is, before its type is known.
func (it *item) head(raw []byte, inherit metav1.TypeMeta) bool {
	var h struct {
		Kind       any `json:"kind"`
		APIVersion any `json:"apiVersion"`
		Metadata   any `json:"metadata"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &h); err != nil {
		it.refuse("", "is not an object: a mapping with apiVersion, kind and metadata is needed")
		return false
	}
	var hasKind, hasVersion bool
	it.kind, hasKind = h.Kind.(string)
	it.apiVersion, hasVersion = h.APIVersion.(string)
	if it.kind == "" {
		it.kind = inherit.Kind
	}
	if it.apiVersion == "" {
		it.apiVersion = inherit.APIVersion
	}
	for _, f := range []struct {
		name, value string
		found       any
		isText      bool
	}{{"kind", it.kind, h.Kind, hasKind}, {"apiVersion", it.apiVersion, h.APIVersion, hasVersion}} {
		switch {
		case f.found != nil && !f.isText:
			it.refuse(f.name, "is not a string")
			return false
		case f.value == "":
			it.refuse(f.name, "is missing")
			return false
		}
	}
	meta, _ := h.Metadata.(map[string]any)
	it.id = objectID{kind: it.kind}
	it.id.name, _ = meta["name"].(string)
	it.id.namespace, _ = meta["namespace"].(string)
	if it.id.namespace == "" && (it.kind == "Service" || it.kind == "EndpointSlice") {
		it.id.namespace = v1.NamespaceDefault
	}
	return true
}

// metadata checks what makes the object's identity, and settles it.
func (it *item) metadata(obj metav1.Object) {
	if namespaced := it.kind == "Service" || it.kind == "EndpointSlice"; namespaced {
		obj.SetNamespace(it.id.namespace)
		if bad := validation.IsDNS1123Label(it.id.namespace); len(bad) > 0 {
			it.refuse("metadata.namespace", "%s is not a name of a namespace", quote(it.id.namespace))
		}
	} else {
		obj.SetNamespace("")
		it.id.namespace = ""
	}
	switch {
	case it.id.name == "":
		it.refuse("metadata.name", "is missing")
	case len(validation.IsDNS1123Subdomain(it.id.name)) > 0:
		it.refuse("metadata.name", "%s is not a name: it needs lower case letters, digits, - and .", quote(it.id.name))
	}
}

// refuseRepeated refuses the object if a key in it is set twice.
func (it *item) refuseRepeated() {
	for _, r := range it.twice {
		if field, inside := strings.CutPrefix(r.field, it.at); inside && (it.at == "" || strings.HasPrefix(field, ".")) {
			it.refuse(strings.TrimPrefix(field, "."), "is set twice")
			it.r.out.problems[len(it.r.out.problems)-1].Line = r.line
		}
	}
}

// refuse reports what makes the object unusable.
func (it *item) refuse(field, format string, args ...any) {
	it.refused = true
	it.r.out.whole = false
	it.add(field, false, fmt.Sprintf(format, args...))
}

// complain reports what is wrong with an object that is used all the same,
// without the part that is wrong.
func (it *item) complain(field, format string, args ...any) {
	it.add(field, false, fmt.Sprintf(format, args...))
}

// note reports what is only worth knowing.
func (it *item) note(field, format string, args ...any) {
	it.add(field, true, fmt.Sprintf(format, args...))
}

func (it *item) add(field string, note bool, reason string) {
	field = join(it.at, field)
	p := Problem{
		File: it.r.file, Document: it.d.number, Line: it.d.line(field),
		Field: field, Reason: reason, Note: note,
	}
	if it.id.kind != "" {
		p.Object = it.id.kind
		if it.id.name != "" {
			p.Object = it.id.String()
		}
	}
	it.r.out.problems = append(it.r.out.problems, p)
}

// quote returns text from a file as a word that ends.
func quote(text string) string {
	const most = 60
	if len(text) > most {
		text = text[:most] + "..."
	}
	return fmt.Sprintf("%q", text)
}

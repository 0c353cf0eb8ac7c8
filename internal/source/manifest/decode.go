package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	kjson "sigs.k8s.io/json"
)

// decode reads a JSON object into a typed one as the API server would: names
// are case sensitive, types must fit. It refuses the item when a type is wrong
// or a key is repeated, and complains about a name that the type has not.
func decode[T any](it *item, raw []byte) *T {
	obj := new(T)
	strict, err := kjson.UnmarshalStrict(raw, obj)
	if err != nil {
		field, reason := explainDecode[T](raw, err)
		it.refuse(field, "%s", reason)
		return obj
	}
	for _, finding := range strict {
		what, quoted, _ := strings.Cut(finding.Error(), ` field "`)
		field := strings.TrimSuffix(quoted, `"`)
		switch {
		case quoted == "":
			it.refuse("", "%s", finding.Error())
		case what == "duplicate":
			it.refuse(field, "is set twice")
		default:
			it.complain(field, "is ignored: %s has no such field", it.kind)
		}
	}
	return obj
}

// explainDecode returns the field that a decoding error is about and what is
// wrong with it. The decoder that found the error hides its details, so the
// standard library's looks for it again.
func explainDecode[T any](raw []byte, err error) (field, reason string) {
	var wrong *json.UnmarshalTypeError
	if !errors.As(json.Unmarshal(raw, new(T)), &wrong) {
		return "", trimPackage(err.Error())
	}
	field = wrong.Field
	// Some types decode themselves and count offsets from their own beginning.
	if at := fieldAt(raw, wrong.Offset); withoutIndexes(at) == wrong.Field {
		field = at
	}
	if number, ok := strings.CutPrefix(wrong.Value, "number "); ok {
		return field, fmt.Sprintf("%s is not %s", number, typeWord(wrong.Type))
	}
	reason = fmt.Sprintf("is %s, not %s", valueWord(wrong.Value), typeWord(wrong.Type))
	if wrong.Type.Kind() == reflect.String && (wrong.Value == "bool" || wrong.Value == "number") {
		reason += "; put it in quotes" // YAML takes the names n, on and 10 for something else.
	}
	return field, reason
}

func valueWord(value string) string {
	switch value {
	case "object":
		return "a mapping"
	case "array":
		return "a list"
	case "bool":
		return "true or false"
	}
	return "a " + value
}

func typeWord(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "a mapping"
	}
	return "a " + t.String()
}

// withoutIndexes removes the list positions from a field's name.
func withoutIndexes(field string) string {
	var out strings.Builder
	for field != "" {
		before, after, ok := strings.Cut(field, "[")
		out.WriteString(before)
		if !ok {
			break
		}
		_, field, _ = strings.Cut(after, "]")
	}
	return out.String()
}

// fieldAt names the value of a JSON text whose first token ends at the offset.
func fieldAt(raw []byte, offset int64) string {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var at position
	for {
		token, err := dec.Token()
		if err != nil {
			return ""
		}
		if at.enter(token) && dec.InputOffset() >= offset {
			return at.String()
		}
		at.leave(token)
	}
}

// position is where a walk through a JSON text stands: one level for each list
// or mapping around it.
type position []level

type level struct {
	list  bool
	index int
	key   string
	inKey bool // the next token is a key
}

// enter takes a token and says whether a value begins with it.
func (p *position) enter(token json.Token) bool {
	if d, ok := token.(json.Delim); ok && (d == '}' || d == ']') {
		return false
	}
	if len(*p) == 0 {
		return true
	}
	top := &(*p)[len(*p)-1]
	if top.inKey {
		top.key, _ = token.(string)
		return false
	}
	return true
}

// leave moves on behind the token.
func (p *position) leave(token json.Token) {
	if d, ok := token.(json.Delim); ok {
		switch d {
		case '{', '[':
			*p = append(*p, level{list: d == '[', inKey: d == '{'})
			return
		case '}', ']':
			*p = (*p)[:len(*p)-1]
		}
	}
	if len(*p) == 0 {
		return
	}
	top := &(*p)[len(*p)-1]
	if top.list {
		top.index++
	} else {
		top.inKey = !top.inKey
	}
}

// String returns the field's name: "spec.ports[0].port".
func (p position) String() string {
	out := ""
	for _, l := range p {
		if l.list {
			out = fmt.Sprintf("%s[%d]", out, l.index)
		} else {
			out = join(out, l.key)
		}
	}
	return out
}

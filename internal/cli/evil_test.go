package cli

import (
	"context"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"sluice/internal/statusapi"
)

// evilText has control characters of a terminal, and what would begin a line of its own.
const evilText = "a\x1b[2J\r\nVerdict\u202e\u0085\xff"

// evil is a daemon that an attacker controls: every text in its answers is evilText.
type evil struct{}

func (evil) Get(_ context.Context, _ string, _ url.Values, to any) error {
	poison(reflect.ValueOf(to).Elem())
	return nil
}

// poison fills in every field, lists with one item. It leaves out continue tokens.
func poison(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(evilText)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64:
		v.SetUint(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		poison(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		poison(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "Continue" && f.Name != "Off" {
				poison(v.Field(i))
			}
		}
	}
}

// TestEvilDaemon checks that no control character of an attacker reaches the terminal, and that no
// text begins a line.
func TestEvilDaemon(t *testing.T) {
	var b strings.Builder
	for _, o := range []StatusOptions{
		{}, {Output: "wide"}, {Output: "name"}, {Output: "json"}, {Output: "yaml"}, {Services: []string{"a/b"}},
	} {
		if _, err := Status(t.Context(), &b, evil{}, o); err != nil {
			t.Fatal(err)
		}
	}
	var node statusapi.Node
	var e statusapi.Explanation
	poison(reflect.ValueOf(&node).Elem())
	poison(reflect.ValueOf(&e).Elem())
	for _, n := range []NodeAnswer[statusapi.Node]{{Node: evilText, Answer: &node}, {Node: "n", Error: evilText}} {
		if err := Nodes(&b, []NodeAnswer[statusapi.Node]{n}, StatusOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	e.Try = append(e.Try, "kubectl "+evilText)
	for _, state := range []statusapi.KernelState{statusapi.KernelDiffers, statusapi.KernelFailed, statusapi.KernelNotChecked} {
		e.Kernel.State = state
		for _, format := range ExplainFormats {
			if err := Explain(&b, format, &e, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for line := range strings.Lines(b.String()) {
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) ||
			strings.HasPrefix(line, "Verdict") && !strings.HasPrefix(line, "Verdict    ") {
			t.Errorf("%q", line)
		}
	}
}

package proxy

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

// TestEveryFieldOfARowIsCompared changes each field of a row alone, and fails for one that
// no comparison knows.
func TestEveryFieldOfARowIsCompared(t *testing.T) {
	for f := range reflect.TypeFor[ServicePort]().Fields() {
		if f.Name == "Key" {
			continue
		}
		i := slices.IndexFunc(rowFields[:], func(x rowField) bool { return x.name == f.Name })
		if i < 0 {
			t.Errorf("field %s is not compared", f.Name)
			continue
		}
		plain, changed := &ServicePort{}, &ServicePort{}
		other(t, reflect.ValueOf(changed).Elem().FieldByIndex(f.Index))
		if plain.Equal(changed) || fmt.Sprint(plain.Changed(changed)) != fmt.Sprint([]Part{rowFields[i].part}) {
			t.Errorf("another %s: equal %t, parts %v, want %v", f.Name, plain.Equal(changed), plain.Changed(changed), rowFields[i].part)
		}
		if plain.String() == changed.String() {
			t.Errorf("another %s does not show in %v", f.Name, changed)
		}
	}
	nobody, everyone := &ServicePort{AllowFrom: []netip.Prefix{}}, &ServicePort{}
	if nobody.Equal(everyone) || !slices.Equal(nobody.Changed(everyone), []Part{PolicyPart}) {
		t.Error("a row for nobody is taken for one for everyone")
	}
	if !everyone.Equal(&ServicePort{Cluster: []Endpoint{}}) || everyone.Changed(everyone) != nil {
		t.Error("equal rows differ")
	}
}

// other sets a field to a value that is not its zero value.
func other(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(1)
	case reflect.Int64:
		v.SetInt(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	default:
		t.Fatalf("this test cannot change a %v", v.Type())
	}
}

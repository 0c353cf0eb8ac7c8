package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

func TestOutermost(t *testing.T) {
	tests := []struct{ in, want []string }{
		{nil, nil},
		{[]string{"10.0.0.0/8"}, []string{"10.0.0.0/8"}},
		{[]string{"10.1.0.0/16", "10.0.0.0/8", "10.2.3.4/32"}, []string{"10.0.0.0/8"}},
		{[]string{"10.1.2.3/16", "10.1.0.0/16"}, []string{"10.1.0.0/16"}},
		{[]string{"fd00::/64", "10.0.0.0/9", "10.128.0.0/9"}, []string{"10.0.0.0/9", "10.128.0.0/9", "fd00::/64"}},
		{[]string{"::/0", "0.0.0.0/0", "10.0.0.0/8", "fd00::/8"}, []string{"0.0.0.0/0", "::/0"}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.in), func(t *testing.T) {
			var in []netip.Prefix
			for _, s := range tt.in {
				in = append(in, netip.MustParsePrefix(s))
			}
			var got []string
			for _, p := range Outermost(in) {
				got = append(got, p.String())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%v; want %v", got, tt.want)
			}
		})
	}
}

func TestWithinOutermost(t *testing.T) {
	in := []netip.Prefix{}
	for _, s := range []string{"192.168.0.2/32", "10.0.0.0/9", "10.1.0.0/16", "127.0.0.0/8", "fd00::/64", "fd00:0:0:1::1/128"} {
		in = append(in, netip.MustParsePrefix(s))
	}
	in = Outermost(in)
	for a, want := range map[string]bool{
		"9.255.255.255": false, "10.0.0.0": true, "10.2.0.1": true, "10.127.255.255": true, "10.128.0.0": false, "127.0.0.2": true,
		"192.168.0.1": false, "192.168.0.2": true, "192.168.0.3": false, "::1": false, "fd00::7": true, "fd00:0:0:1::1": true, "fd00:0:0:1::2": false,
	} {
		if got := WithinOutermost(in, netip.MustParseAddr(a)); got != want {
			t.Errorf("%s within %v: %t; want %t", a, in, got, want)
		}
	}
	if WithinOutermost(nil, netip.MustParseAddr("10.0.0.1")) {
		t.Error("an address is within no prefix")
	}
}

// TestWithout checks that rows are removed from the copy only.
func TestWithout(t *testing.T) {
	a, b := PortKey{ServicePortName: ServicePortName{Name: "a"}}, PortKey{ServicePortName: ServicePortName{Name: "b"}}
	s := NewState()
	s.Rows[a], s.Rows[b] = &ServicePort{Key: a}, &ServicePort{Key: b}
	got := s.Without(Refused{a: errors.New("no"), {}: errors.New("no such row")})
	if !slices.Equal(got.Keys(), []PortKey{b}) || got.Node != s.Node || len(s.Rows) != 2 {
		t.Errorf("%v, and %v of the state itself", got.Keys(), s.Keys())
	}
}

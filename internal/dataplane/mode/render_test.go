package mode_test

import (
	"errors"
	"strings"
	"testing"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// TestRenderingPrints prints objects, and differences between objects.
func TestRenderingPrints(t *testing.T) {
	one, two := []string{"a", "b", "b"}, []string{"b", "a", "c"}
	tests := []struct {
		name    string
		diff    bool
		was, is []string
		want    string
		lines   int
	}{
		{"all", false, one, two, "# title\nb\na\nc\n", 3},
		{"what differs", true, one, two, "# title\n- b\n+ c\n", 2},
		{"the order", true, []string{"a", "b"}, []string{"b", "a"}, "# title\n- a\n- b\n+ b\n+ a\n", 4},
		{"nothing", false, nil, nil, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			r := &mode.Rendering{Diff: tt.diff, Out: &out}
			r.Title("title")
			if r.Print(tt.was, tt.is); out.String() != tt.want || r.Lines != tt.lines {
				t.Errorf("%d lines\n%s\nwant %d\n%s", r.Lines, out.String(), tt.lines, tt.want)
			}
		})
	}
}

// TestRenderingOfOneService checks that only objects of the rows of Only are printed.
func TestRenderingOfOneService(t *testing.T) {
	web := proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: "web", Protocol: proxy.TCP}}
	dns := proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: "dns", Protocol: proxy.TCP}}
	var out strings.Builder
	r := &mode.Rendering{Out: &out, Only: func(k proxy.PortKey) bool { return k.Name == "web" }}
	if r.Concerns(nil) || r.Concerns([]*proxy.PortKey{&dns}) || !r.Concerns([]*proxy.PortKey{&dns, &web}) {
		t.Error("Concerns does not follow Only")
	}
	r.Refused(proxy.Refused{web: errors.New("too large"), dns: errors.New("too small")})
	if want := "# ns/web/TCP/IPv4 is refused: too large\n"; out.String() != want {
		t.Errorf("refused %q, want %q", out.String(), want)
	}
}

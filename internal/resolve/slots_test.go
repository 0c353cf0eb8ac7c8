package resolve

import (
	"fmt"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice/internal/proxy"
)

// lettered returns endpoints by letters: "ab" are 10.0.0.1 and 10.0.0.2.
func lettered(letters string) []proxy.Endpoint {
	var out []proxy.Endpoint
	for _, l := range letters {
		out = append(out, proxy.Endpoint{Addr: addrPort(fmt.Sprintf("10.0.0.%d:80", l-'a'+1))})
	}
	return out
}

func letters(list []proxy.Endpoint) string {
	var b strings.Builder
	for _, e := range list {
		b.WriteByte('a' - 1 + e.Addr.Addr().As4()[3])
	}
	return b.String()
}

func TestArrange(t *testing.T) {
	tests := []struct{ old, wanted, slots string }{
		{"", "", ""},
		{"", "abc", "abc"},
		{"abc", "", ""},
		{"cab", "abc", "cab"},
		{"abc", "abcde", "abcde"},
		{"abcd", "bcd", "dbc"},
		{"abcd", "abc", "abc"},
		{"abcd", "acd", "adc"},
		{"abcde", "bd", "db"},
		{"abcde", "e", "e"},
		{"abc", "acx", "axc"},
		{"abcd", "adxy", "axyd"},
		{"abcd", "adx", "axd"},
		{"abc", "wxyz", "wxyz"},
	}
	for _, tt := range tests {
		t.Run(tt.old+" to "+tt.wanted, func(t *testing.T) {
			old, wanted := lettered(tt.old), lettered(tt.wanted)
			if got := letters(assignSlots(old, wanted)); got != tt.slots {
				t.Errorf("slots %q; want %q", got, tt.slots)
			}
			if got := letters(old); got != tt.old {
				t.Errorf("the old slots became %q", got)
			}
		})
	}
}

// TestAssignSlotsKeeps checks that the old list is returned if nothing changed, and a new
// one if only a property of an endpoint did.
func TestAssignSlotsKeeps(t *testing.T) {
	old, wanted := lettered("ba"), lettered("ab")
	if got := assignSlots(old, wanted); &got[0] != &old[0] {
		t.Errorf("an unchanged list was copied")
	}
	wanted[1].Local = true
	if got := assignSlots(old, wanted); letters(got) != "ba" || !got[0].Local || old[0].Local {
		t.Errorf("endpoints %v from %v; want the first one local in a new list", got, old)
	}
}

// TestReplaceChangesOneSlot replaces one endpoint of ten in both lists.
func TestReplaceChangesOneSlot(t *testing.T) {
	endpoints := func(skip, extra int) []discoveryv1.Endpoint {
		var out []discoveryv1.Endpoint
		for i := 1; i <= 10; i++ {
			if i == skip {
				i = extra
			}
			out = append(out, endpointOf(fmt.Sprintf("10.1.0.%d", i), here))
			if i == extra {
				i = skip
			}
		}
		return out
	}
	r := resolverOf(t, serviceOf("ns/web", "10.96.0.1", nodePort(30080), externalLocal), sliceOf("ns/s", "web", endpoints(0, 0)...))
	add(t, r, sliceOf("ns/s", "web", endpoints(3, 99)...))
	d := r.Update()
	if len(d.Upserts) != 1 {
		t.Fatalf("%d rows changed; want 1", len(d.Upserts))
	}
	u := d.Upserts[0]
	for _, list := range [][2][]proxy.Endpoint{{u.Old.Cluster, u.New.Cluster}, {u.Old.Local, u.New.Local}} {
		changed := 0
		for i := range list[0] {
			if list[0][i] != list[1][i] {
				changed++
			}
		}
		if len(list[1]) != 10 || changed != 1 {
			t.Errorf("%v -> %v: %d slots changed; want 1", list[0], list[1], changed)
		}
	}
}

package link

import (
	"maps"
	"strings"
	"testing"
)

// FuzzNote reads aliases of links, which are anybody's, and wants one of ours to be
// read as it was written.
func FuzzNote(f *testing.F) {
	f.Add("note arp_ignore=0 arp_announce=2")
	f.Add("uplink to rack 7")
	f.Add("note = =a a==b")
	f.Fuzz(func(t *testing.T, alias string) {
		first := readNote(alias)
		if again := readNote(first.String()); !maps.Equal(first, again) {
			t.Errorf("%q is read as %v, and then as %v", alias, first, again)
		}
		if len(first) > 0 && !strings.HasPrefix(strings.TrimSpace(alias), noteStart) {
			t.Errorf("%q is a note: %v", alias, first)
		}
	})
}

package archtest

import (
	"maps"
	"os"
	"path"
	"slices"
	"testing"

	"sluice/internal/archtest/hops"
	"sluice/internal/config"
	"sluice/internal/dataplane"
)

// TestHopsOfEveryMode checks that ARCHITECTURE.md lists the hops of an event for every mode and
// for nothing else, and that a test of each mode follows them.
func TestHopsOfEveryMode(t *testing.T) {
	text, err := os.ReadFile(root + "/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	lists, err := hops.Lists(string(text))
	if err != nil {
		t.Fatal(err)
	}
	_, files := parse(t)
	followed := map[string]bool{}
	for _, f := range files {
		if f.test && f.imports("sluice/internal/archtest/hops") {
			followed[path.Base(f.pkg)] = true
		}
	}
	for name := range lists {
		if _, err := dataplane.Rendered(config.ProxyMode(name)); err != nil {
			t.Errorf("ARCHITECTURE.md lists hops of mode %s: %v", name, err)
		}
		if !followed[name] {
			t.Errorf("no test of mode %s follows the hops", name)
		}
	}
	for _, m := range append(dataplane.Modes(), dataplane.Mode{Name: "kernelspace"}) {
		if lists[string(m.Name)] == nil {
			t.Errorf("ARCHITECTURE.md lists hops of modes %v, but not of %s", slices.Sorted(maps.Keys(lists)), m.Name)
		}
	}
}

package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestHalfAFile writes a file in place, and stops in the middle: what is not there yet
// stays until the file has been so for a while. One that is renamed is whole.
func TestHalfAFile(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "all.yaml")
	const one = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n"
	both := one + "---\n" + strings.ReplaceAll(one, "web", "other")
	f := newFolder(dir)
	look := func(when string, want int) {
		t.Helper()
		if err := f.scan(true); err != nil {
			t.Fatal(err)
		}
		if got, _ := f.merged(); len(got) != want {
			t.Errorf("%s: %d objects; want %d", when, len(got), want)
		}
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(at, both)
	look("at first", 2)
	write(at, "")
	look("emptied", 2)
	write(at, one)
	look("with one half", 2)
	if !f.pending {
		t.Error("nobody looks again")
	}
	write(at, both)
	look("with both halves", 2)
	write(at, one)
	look("with one half again", 2)
	f.files["all.yaml"].partialSince = time.Now().Add(-partialGrace)
	look("with one half for a while", 1)

	write(at, both)
	look("with both once more", 2)
	write(at+".new", one)
	if err := os.Rename(at+".new", at); err != nil {
		t.Fatal(err)
	}
	look("renamed", 1)
}

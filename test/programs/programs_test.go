package programs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPut wants a copy of what make has built, and an error that says what to do if it is not there.
func TestPut(t *testing.T) {
	built, path := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	t.Setenv(Variable, built)
	if err := Daemon.Put(t.Context(), path); err == nil || !strings.Contains(err.Error(), "make test-programs") {
		t.Errorf("without the program: %v", err)
	}
	if err := os.WriteFile(filepath.Join(built, "sluice"), []byte("#!"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Daemon.Put(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(built, "sluice")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o755 || info.Size() != 2 {
		t.Errorf("the copy is %v (error: %v)", info, err)
	}
}

// TestPutBuilds wants a program of another module's folder, too, which has other requirements.
func TestPutBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("links a program")
	}
	t.Setenv(Variable, "")
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(root, "test", "page"))
	path := filepath.Join(t.TempDir(), "sluice")
	if err := Daemon.Put(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("it is %v (error: %v)", info, err)
	}
}

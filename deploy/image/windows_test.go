package main

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestWindowsImage wants the program on layers as Windows unpacks them, and nothing else.
func TestWindowsImage(t *testing.T) {
	b := built(t)
	img := b.all[len(b.all)-1]
	layers, err := img.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("%d layers, error %v; want the lowest, and that of the daemon", len(layers), err)
	}
	files := contents(t, img)
	const config = "Files/Windows/System32/config"
	hives := []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"}
	want := []string{"Files", "Files/Windows", "Files/Windows/System32", config, "Files/sluice.exe", "Hives"}
	for _, name := range hives {
		want = append(want, path.Join(config, name))
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
		t.Errorf("the image has %v, want %v", got, want)
	}
	f, err := pe.NewFile(bytes.NewReader(files["Files/sluice.exe"].text))
	if err != nil || f.Machine != pe.IMAGE_FILE_MACHINE_AMD64 {
		t.Errorf("the program is for machine %+v, error %v", f, err)
	}
	for _, name := range hives {
		checkHive(t, name, files[path.Join(config, name)].text)
	}
}

// checkHive has another program read a hive, and sums up its header.
func checkHive(t *testing.T, name string, text []byte) {
	t.Helper()
	var sum uint32
	for at := 0; at < 512; at += 4 {
		sum ^= binary.LittleEndian.Uint32(text[at:])
	}
	if len(text) != 8192 || sum != 0 {
		t.Errorf("hive %s has %d bytes, and the sum of its header is off by %#x", name, len(text), sum)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("hivexml", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `<node name="`+name+`" root="1">`) {
		t.Errorf("hivexml reads %q in hive %s, error %v; want an empty root (make deps installs it)", out, name, err)
	}
}

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestReproducible builds everything once more, in another folder, with files of
// another age, under another umask, time zone and temporary folder. Every file must
// be the same, bit by bit.
func TestReproducible(t *testing.T) {
	b := *built(t)
	r := *b.release
	b.release, r.output = &r, t.TempDir()
	if err := b.write(); err != nil {
		t.Fatal(err)
	}
	elsewhere := copySources(t)
	program := filepath.Join(t.TempDir(), "image")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	packages, err := filepath.Abs(cached)
	if err != nil {
		t.Fatal(err)
	}
	again := t.TempDir()
	cmd := exec.Command("sh", "-c", `umask 077; exec "$@"`, "sh", program,
		"--version", r.version, "--commit", r.commit, "--date", r.date.In(time.FixedZone("", 3600)).Format(time.RFC3339),
		"--source", r.source, "--ldflags", r.ldflags, "--root", elsewhere, "--output", again, "--packages", packages)
	cmd.Env = append(os.Environ(), "TZ=Pacific/Kiritimati", "TMPDIR="+t.TempDir(), "LC_ALL=C.UTF-8", "GOFLAGS=-buildvcs=true", "GOAMD64=v3")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first, second := sums(t, r.output), sums(t, again)
	if len(first) < 20 || !maps.Equal(first, second) {
		t.Errorf("the second build differs:\n%v\n%v", first, second)
	}
}

// TestReproducibleBinary builds the daemon of this architecture again, elsewhere
// and with an empty cache.
func TestReproducibleBinary(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles everything, half a minute of two processors; left out by -short")
	}
	r := trial()
	r.root = copySources(t)
	t.Setenv("GOCACHE", t.TempDir())
	again, err := r.buildProgram(t.Context(), "linux", runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range built(t).all {
		if img.program.os == again.os && img.program.arch == again.arch && !bytes.Equal(img.program.text, again.text) {
			t.Errorf("the binary for %s differs", again.arch)
		}
	}
}

// copySources copies what is built to another folder, without Git, and makes it
// look older.
func copySources(t *testing.T) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "a folder with another name")
	for _, dir := range []string{"cmd", "internal"} {
		if err := os.CopyFS(filepath.Join(to, dir), os.DirFS(filepath.Join("../..", dir))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum", "CHANGELOG.md"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Unix(1e9, 0)
	err := filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, old, old))
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// sums returns the checksum of every file below a folder.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		all[strings.TrimPrefix(path, dir)] = fmt.Sprintf("%x", sha256.Sum256(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

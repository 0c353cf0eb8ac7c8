package wine

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"sluice/test/programs"
)

//go:embed stub/hns.c
var stub []byte

const compiler = "x86_64-w64-mingw32-gcc"

// template returns a Wine prefix to copy, which contains our DLLs. It is created once, because that
// takes longer than most tests.
func template(ctx context.Context) (string, error) {
	for _, program := range []string{wine64, compiler} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%w; run make deps", err)
		}
	}
	root, err := programs.Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache", "wine")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	prefix := filepath.Join(dir, fmt.Sprintf("prefix-%.6x", sha256.Sum256(stub)))
	if _, err := os.Stat(prefix); err == nil {
		return prefix, nil
	}
	older, err := filepath.Glob(filepath.Join(dir, "*-*"))
	for _, d := range older {
		err = errors.Join(err, os.RemoveAll(d))
	}
	part := filepath.Join(dir, "prefix-part")
	if err = errors.Join(err, makePrefix(ctx, part)); err != nil {
		return "", fmt.Errorf("make a Wine prefix: %w", err)
	}
	return prefix, os.Rename(part, prefix)
}

func makePrefix(ctx context.Context, prefix string) error {
	boot := exec.CommandContext(ctx, wine64, "wineboot", "--init")
	boot.Env = environment(prefix)
	if out, err := boot.CombinedOutput(); err != nil {
		return fmt.Errorf("wineboot: %w\n%s", err, out)
	}
	if err := (&Windows{env: boot.Env}).halt(); err != nil {
		return err
	}
	if err := link(prefix); err != nil {
		return err
	}
	system32 := filepath.Join(prefix, "drive_c", "windows", "system32")
	library := filepath.Join(system32, "computenetwork.dll")
	compile := exec.CommandContext(ctx, compiler, "-xc", "-shared", "-O2", "-s", "-Wall", "-Werror", "-o", library, "-", "-lws2_32", "-lole32")
	compile.Stdin = bytes.NewReader(stub)
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the libraries: %w\n%s", err, out)
	}
	return errors.Join(
		os.Link(library, filepath.Join(system32, "vmcompute.dll")),
		os.Link(library, filepath.Join(system32, "bcryptprimitives.dll")),
	)
}

// link replaces the copies of Wine's DLLs, which take 690 MB, with symbolic links.
func link(prefix string) error {
	originals, err := filepath.Glob("/usr/lib/*/wine/x86_64-windows")
	if err != nil || len(originals) != 1 {
		return fmt.Errorf("find Wine's libraries: want one directory, got %v", originals)
	}
	return filepath.WalkDir(filepath.Join(prefix, "drive_c"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		original := filepath.Join(originals[0], d.Name())
		theirs, err := os.ReadFile(original)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		ours, err2 := os.ReadFile(path)
		if err = errors.Join(err, err2); err != nil || !bytes.Equal(ours, theirs) {
			return err
		}
		return errors.Join(os.Remove(path), os.Symlink(original, path))
	})
}

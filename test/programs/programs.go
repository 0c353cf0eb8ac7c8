package programs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Variable is the environment variable with the absolute path of the folder of built programs. It
// is unset when a test runs alone.
const Variable = "SLUICE_PROGRAMS"

// Program is a program of this repository.
type Program struct {
	file   string // in the folder of built programs; make test-programs writes it
	pkg    string
	system string
	arch   string // empty means that of this machine
}

// These programs are built once.
var (
	Daemon        = Program{"sluice", "./cmd/sluice", "linux", ""}
	WindowsDaemon = Program{"sluice.exe", "./cmd/sluice", "windows", "amd64"}
	Demo          = Program{"demo", "./test/demo", "linux", ""}
)

// Put puts a program at a path, which must not be executed yet. A test gets its own copy, so that it can
// remove it, and so that none is replaced while it runs.
func (p Program) Put(ctx context.Context, path string) error {
	if folder := os.Getenv(Variable); folder != "" {
		return p.copyFrom(ctx, filepath.Join(folder, p.file), path)
	}
	root, err := Root()
	if err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, p.pkg)
	cmd.Dir = root // for this module's requirements, not those of the test's
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.system, "GOARCH="+cmp.Or(p.arch, runtime.GOARCH))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", p.file, err, out)
	}
	return nil
}

// copyFrom copies a program. This process must not have it open for writing, because a process that
// another goroutine is starting would have it open, too, and the kernel executes no such file.
func (p Program) copyFrom(ctx context.Context, built, path string) error {
	if _, err := os.Stat(built); err != nil { // also makes cached test results depend on it
		return fmt.Errorf("find the programs of %s, which make test-programs builds: %w", Variable, err)
	}
	if out, err := exec.CommandContext(ctx, "cp", built, path).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w\n%s", built, err, out)
	}
	return nil
}

// Root returns the root directory of the repository that contains the current directory.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module sluice\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find Sluice's repository: " + start + " is outside of it")
		}
	}
}

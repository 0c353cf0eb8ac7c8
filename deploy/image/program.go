package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// program is the daemon for one operating system and architecture.
type program struct {
	os   string
	arch string
	text []byte
	info *buildinfo.BuildInfo // the modules recorded in the binary
}

// buildProgram builds the static daemon. It sets everything that the environment could change about
// the binary.
func (r *release) buildProgram(ctx context.Context, system, arch string) (*program, error) {
	dir, err := os.MkdirTemp("", "sluice-binary-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "sluice")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", r.ldflags, "-o", path, "./cmd/sluice")
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), buildEnvironment(system, arch)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build cmd/sluice for %s/%s: %w\n%s", system, arch, err, out)
	}
	b := &program{os: system, arch: arch}
	if b.text, err = os.ReadFile(path); err != nil {
		return nil, err
	}
	if b.info, err = buildinfo.ReadFile(path); err != nil {
		return nil, fmt.Errorf("read the modules of cmd/sluice for %s/%s: %w", system, arch, err)
	}
	return b, nil
}

// buildEnvironment returns the environment variables that determine the binary.
func buildEnvironment(system, arch string) []string {
	return []string{
		"CGO_ENABLED=0", "GOOS=" + system, "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOEXPERIMENT=", "GOWORK=off",
	}
}

package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// binary is the daemon for one architecture.
type binary struct {
	arch string
	text []byte
	info *buildinfo.BuildInfo // what it says itself of its modules
}

// buildBinary builds the daemon, static. What a builder's environment could
// change about it is set here.
func (r *release) buildBinary(ctx context.Context, arch string) (*binary, error) {
	dir, err := os.MkdirTemp("", "sluice-binary-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "sluice")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", r.ldflags, "-o", path, "./cmd/sluice")
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), buildEnvironment(arch)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build cmd/sluice for %s: %w\n%s", arch, err, out)
	}
	b := &binary{arch: arch}
	if b.text, err = os.ReadFile(path); err != nil {
		return nil, err
	}
	if b.info, err = buildinfo.ReadFile(path); err != nil {
		return nil, fmt.Errorf("read the modules of cmd/sluice for %s: %w", arch, err)
	}
	return b, nil
}

// buildEnvironment returns what decides about the binary beside its sources.
func buildEnvironment(arch string) []string {
	return []string{
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOEXPERIMENT=", "GOWORK=off",
	}
}

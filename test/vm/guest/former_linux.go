package guest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrNoHistory says that no former version can be built.
var ErrNoHistory = errors.New("find the former version: this is no git checkout with history")

// BuildFormer builds the daemon of the last release or, without a release, of the previous commit,
// in a subdirectory of below, unless it exists, and returns its path.
func BuildFormer(below string) (string, error) {
	dir := filepath.Join(below, "former")
	program := filepath.Join(dir, "sluice")
	if exists(program) {
		return program, nil
	}
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", args...).Output()
		return strings.TrimSpace(string(out)), err
	}
	former, err := git("describe", "--tags", "--abbrev=0", "HEAD^")
	if err != nil {
		former, err = git("rev-parse", "--verify", "HEAD^")
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoHistory, err)
	}
	root, err := git("rev-parse", "--show-toplevel")
	if err := errors.Join(err, os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	cmd := exec.Command("bash", "-ec", `set -o pipefail; git -C "$2" archive "$3" | tar x -C "$1"; cd "$1"
		go build -trimpath -ldflags='-s -w' -o sluice ./cmd/sluice`, "build", dir, root, former)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the daemon of %s: %w\n%s", former, err, out)
	}
	return program, nil
}

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// Compile makes a program of a package's tests that needs no C library, as the
// guest has none.
func Compile(ctx context.Context, pkg, program string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the tests of %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// RunTests makes the job run a program of a package's tests, in the package's
// folder with its testdata. The job's command so far is the arguments.
func (j *Job) RunTests(pkg, program string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		return fmt.Errorf("find %s: %w", pkg, err)
	}
	folder := strings.TrimSpace(string(out))
	rel, err := filepath.Rel(root, folder)
	if err != nil {
		return err
	}
	j.Dir = path.Join(Src, filepath.ToSlash(rel))
	j.Add("/tests", program)
	if rel == filepath.Join("test", "daemon") {
		if err := j.addDaemon(program + "-daemon"); err != nil {
			return err
		}
	}
	if data := filepath.Join(folder, "testdata"); exists(data) {
		j.Add(path.Join(j.Dir, "testdata"), data)
	}
	j.Command = append([]string{"/tests"}, j.Command...)
	return nil
}

// Variables of the environment that say where tests of the daemon find it built, and
// that of the former version.
const (
	DaemonVariable = "SLUICE_BINARY"
	FormerVariable = "SLUICE_FORMER_BINARY"
)

// addDaemon builds the daemon and that of the former version, and has tests find them.
func (j *Job) addDaemon(program string) error {
	const inGuest, former = "/bin/sluice", "/bin/sluice-former"
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "sluice/cmd/sluice")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the daemon: %w\n%s", err, out)
	}
	j.Add(inGuest, program)
	j.Env = append(j.Env, DaemonVariable+"="+inGuest)
	path, err := BuildFormer(filepath.Dir(program))
	if errors.Is(err, ErrNoHistory) {
		return nil
	}
	j.Add(former, path)
	j.Env = append(j.Env, FormerVariable+"="+former)
	return err
}

// Add gives the guest a file or folder of this machine.
func (j *Job) Add(inGuest, here string) {
	if j.Files == nil {
		j.Files = map[string]string{}
	}
	j.Files[inGuest] = here
}

func exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}

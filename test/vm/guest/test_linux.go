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

	"sluice/test/programs"
)

// Compile compiles the tests of a package without cgo, because the guest has no C library.
func Compile(ctx context.Context, pkg, program string) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the tests of %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// RunTests makes the job run a test binary in its package's directory, with its testdata. The job's
// command so far becomes the arguments.
func (j *Job) RunTests(pkg, program string) error {
	root, err := programs.Root()
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
	if filepath.Dir(rel) == filepath.Join("test", "daemon") {
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

// DaemonVariable and FormerVariable are the environment variables with the paths of the daemon
// under test and of its former version.
const (
	DaemonVariable = "SLUICE_BINARY"
	FormerVariable = "SLUICE_FORMER_BINARY"
)

// addDaemon adds the daemon and its former version to the guest and sets their variables.
func (j *Job) addDaemon(program string) error {
	const inGuest, former = "/bin/sluice", "/bin/sluice-former"
	if err := programs.Daemon.Put(context.Background(), program); err != nil {
		return err
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

// Add adds a file or directory of the host to the guest.
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

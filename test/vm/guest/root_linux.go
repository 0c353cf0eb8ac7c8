package guest

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
)

// root is a directory of unpacked packages. Its programs run with its own libraries, independently
// of this machine's.
type root string

// loader is the dynamic loader.
const loader = "ld-linux-x86-64.so.2"

// The directories of programs and libraries.
var (
	programDirs = []string{"bin", "sbin", "usr/bin", "usr/sbin"}
	libraryDirs = []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"}
)

// find returns the path of a file or directory in one of several directories.
func (r root) find(name string, dirs []string) (string, error) {
	for _, d := range dirs {
		p, err := filepath.EvalSymlinks(filepath.Join(string(r), d, name))
		if err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("find %s in %v of %s: no such file", name, dirs, r)
}

// libraries collects the libraries that a program needs, transitively.
func (r root) libraries(program string, into map[string]string) error {
	f, err := elf.Open(program)
	if err != nil {
		return err
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	for _, n := range names {
		if into[n] != "" {
			continue
		}
		if into[n], err = r.find(n, libraryDirs); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		if err := r.libraries(into[n], into); err != nil {
			return err
		}
	}
	return nil
}

// command returns a command that runs a program with the name argv0.
func (r root) command(program, argv0 string, args ...string) (*exec.Cmd, error) {
	from, err := r.find(program, programDirs)
	if err != nil {
		return nil, err
	}
	start, err := r.find(loader, libraryDirs)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, d := range libraryDirs {
		dirs = append(dirs, filepath.Join(string(r), d))
	}
	return exec.Command(start, append([]string{"--library-path", strings.Join(dirs, ":"), "--argv0", argv0, from}, args...)...), nil
}

// run runs a program and waits for it.
func (r root) run(program, argv0 string, args ...string) error {
	cmd, err := r.command(program, argv0, args...)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", argv0, err, bytes.TrimSpace(out))
	}
	return nil
}

// decompress unpacks every .xz file below a directory.
func (r root) decompress(dir string) error {
	var files []string
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if filepath.Ext(p) == ".xz" {
			files = append(files, p)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		return err
	}
	return r.run("xz", "xz", append([]string{"-d"}, files...)...)
}

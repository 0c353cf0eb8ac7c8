package traffic

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroups is a cgroup (v2) that the process is in while it simulates several hosts, with a child
// cgroup for each of them. A socket belongs to the cgroup of the thread that created it; single
// threads can move to the children.
type Cgroups struct{ home, own, bpf string }

// NewCgroups creates a cgroup below the process's own and moves the process there. A process can
// have only one at a time.
func NewCgroups() (*Cgroups, error) {
	home, err := ownCgroup()
	if err != nil {
		return nil, err
	}
	own, err := os.MkdirTemp(home, "sluice-test-")
	if err != nil {
		return nil, err
	}
	if err := join(own, "cgroup.procs"); err != nil {
		return nil, errors.Join(err, os.Remove(own))
	}
	return &Cgroups{home: home, own: own}, nil
}

// Add creates the cgroup of another host and returns its directory.
func (c *Cgroups) Add() (string, error) {
	dir, err := os.MkdirTemp(c.own, "host-")
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0)
}

// MountBPF mounts a BPF file system and returns its directory. Close removes it with everything
// pinned there.
func (c *Cgroups) MountBPF() (string, error) {
	dir, err := os.MkdirTemp("", "sluice-bpf-")
	if err != nil {
		return "", err
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return "", errors.Join(fmt.Errorf("mount a BPF file system: %w", err), os.Remove(dir))
	}
	c.bpf = dir
	return dir, nil
}

// Close moves the process back to its former cgroup and removes the others. No other process may
// still be in them.
func (c *Cgroups) Close() error {
	errs := []error{join(c.home, "cgroup.procs")}
	if c.bpf != "" {
		errs = append(errs, unix.Unmount(c.bpf, unix.MNT_DETACH), os.Remove(c.bpf))
	}
	below, err := filepath.Glob(filepath.Join(c.own, "host-*"))
	for _, dir := range append(below, c.own) {
		errs = append(errs, os.Remove(dir))
	}
	return errors.Join(append(errs, err)...)
}

// join moves the calling thread to a cgroup, or the whole process if the file is cgroup.procs.
// Writing 0 means the caller; unlike a thread ID, it does not make the kernel stop all other
// threads.
func join(dir, file string) error { return os.WriteFile(filepath.Join(dir, file), []byte("0"), 0) }

// ownCgroup returns the directory of the calling thread's cgroup.
func ownCgroup() (string, error) {
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	own, err2 := os.ReadFile("/proc/thread-self/cgroup")
	if err := errors.Join(err, err2); err != nil {
		return "", err
	}
	_, path, _ := strings.Cut("\n"+string(own), "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	for line := range strings.Lines(string(mounts)) {
		if !strings.Contains(line, " - cgroup2 ") {
			continue
		}
		mount := strings.Fields(line) // field 4 is the root of the mount, field 5 the mount point
		if below, err := filepath.Rel(mount[3], path); err == nil && filepath.IsLocal(below) {
			return filepath.Join(mount[4], below), nil
		}
	}
	return "", errors.New("find own cgroup: no cgroup2 mount contains it")
}

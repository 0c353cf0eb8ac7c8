package traffic

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroups is a cgroup (v2) that the process is in while it plays several hosts,
// with a cgroup below it for each of them. A socket belongs to the cgroup of the
// thread that made it, and single threads can be in the ones below.
type Cgroups struct{ home, own, bpf string }

// NewCgroups makes a cgroup below the process's own and moves the process there.
// There is one at a time in a process.
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

// Add makes the cgroup of one more host, and returns its folder.
func (c *Cgroups) Add() (string, error) {
	dir, err := os.MkdirTemp(c.own, "host-")
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0)
}

// MountBPF mounts a BPF file system for the programs at the sockets, and returns its
// folder. What they pin there goes with Close.
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

// Close moves the process back to where it was and removes the cgroups, which no
// other process may be in any more.
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

// join moves the calling thread to a cgroup, or with cgroup.procs all of its
// process. To the kernel 0 is the caller; for a thread that says so it does not
// stop all others.
func join(dir, file string) error { return os.WriteFile(filepath.Join(dir, file), []byte("0"), 0) }

// ownCgroup returns the folder of the cgroup that the calling thread is in.
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
		mount := strings.Fields(line) // the fourth is what is mounted, the fifth is where
		if below, err := filepath.Rel(mount[3], path); err == nil && filepath.IsLocal(below) {
			return filepath.Join(mount[4], below), nil
		}
	}
	return "", errors.New("cgroup2 is not mounted, or not with this process's cgroup in it")
}

package traffic_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
)

// cgroup returns the path of the calling thread's cgroup (v2).
func cgroup(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	_, path, _ := strings.Cut("\n"+string(text), "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	return path
}

// TestDoIsInTheCgroup follows a thread to the cgroups of two hosts and back.
func TestDoIsInTheCgroup(t *testing.T) {
	lab.Require(t)
	before := cgroup(t)
	tree, err := traffic.NewCgroups()
	if err != nil {
		t.Fatal(err)
	}
	home := cgroup(t)
	bpf, err := tree.MountBPF()
	if err != nil {
		t.Fatal(err)
	}
	var hosts []*traffic.Namespace
	for _, name := range []string{"a", "b", "nowhere"} {
		n, err := traffic.New(name, &traffic.Ports{})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if n.Cgroup, err = tree.Add(); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, n)
	}
	a, b, nowhere := hosts[0], hosts[1], hosts[2]
	check := func(where, got, want string) {
		if filepath.Base(got) != filepath.Base(want) {
			t.Errorf("%s: in cgroup %s, want %s", where, got, want)
		}
	}
	err = a.Do(func() error {
		check("first host", cgroup(t), a.Cgroup)
		err := b.Do(func() error {
			check("second host, from the first", cgroup(t), b.Cgroup)
			return nil
		})
		check("first host again", cgroup(t), a.Cgroup)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	check("afterwards", cgroup(t), home)
	if err := os.Remove(nowhere.Cgroup); err != nil {
		t.Fatal(err)
	}
	err = nowhere.Do(func() error {
		t.Error("ran outside the cgroup that it was to be in")
		return nil
	})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such cgroup: %v", err)
	}
	check("after an error", cgroup(t), home)
	if err := tree.Close(); err != nil {
		t.Fatal(err)
	}
	if got := cgroup(t); got != before {
		t.Errorf("closed: in cgroup %s, want %s", got, before)
	}
	for _, dir := range []string{filepath.Dir(a.Cgroup), bpf} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("closed: %s: %v", dir, err)
		}
	}
}

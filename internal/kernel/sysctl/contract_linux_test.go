package sysctl_test

import (
	"errors"
	"io/fs"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/kernel/sysctl/sysctltest"
)

const (
	timeout = "net/netfilter/nf_conntrack_udp_timeout"
	max     = "net/netfilter/nf_conntrack_max" // may only be changed in the first network namespace
)

// TestContract holds the kernel and the Fake to the same behaviour.
func TestContract(t *testing.T) {
	implementations := map[string]func(*testing.T) sysctl.Interface{
		"kernel": func(t *testing.T) sysctl.Interface { return inNamespace(t) },
		"fake": func(*testing.T) sysctl.Interface {
			f := sysctltest.NewFake(map[string]string{timeout: "30", max: "262144", "kernel/ostype": "Linux", "/proc/self/oom_score_adj": "0"})
			f.Refuse(max, fs.ErrPermission)
			return f
		},
	}
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) { checkContract(t, open(t)) })
	}
}

// inNamespace returns the settings of a network namespace of the test's own,
// which ends with the test's thread.
func inNamespace(t *testing.T) sysctl.Interface {
	t.Helper()
	lab.Namespace(t)
	return sysctl.Kernel{}
}

func checkContract(t *testing.T, k sysctl.Interface) {
	if got, err := k.Read("kernel/ostype"); got != "Linux" || err != nil {
		t.Errorf("kernel/ostype is %q, error %v", got, err)
	}
	if _, err := sysctl.ReadInt(k, "kernel/ostype"); err == nil {
		t.Errorf("kernel/ostype is a number")
	}
	if _, err := sysctl.ReadInt(k, "/proc/self/oom_score_adj"); err != nil {
		t.Errorf("read by path: %v", err)
	}
	if err := k.Write(timeout, "77"); err != nil {
		t.Errorf("write: %v", err)
	}
	if got, err := sysctl.ReadInt(k, timeout); got != 77 || err != nil {
		t.Errorf("%s is %d, error %v; want 77", timeout, got, err)
	}
	if err := k.Write(max, "262144"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("write %s: %v; want %v", max, err, fs.ErrPermission)
	}
	const missing = "net/netfilter/nf_conntrack_no_such"
	if _, err := k.Read(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read a missing setting: %v; want %v", err, fs.ErrNotExist)
	}
	if err := k.Write(missing, "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("write a missing setting: %v; want %v", err, fs.ErrNotExist)
	}
}

package hns_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"sluice/internal/kernel/hns"
	"sluice/test/wine"
)

// TestOnWindows runs the tests of this package that are for Windows: there the
// service is that of Windows up to the libraries of the system.
func TestOnWindows(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Wine; left out by -short")
	}
	exe := filepath.Join(t.TempDir(), "hns.test.exe")
	if err := wine.Compile(t.Context(), "sluice/internal/kernel/hns", exe); err != nil {
		t.Fatal(err)
	}
	fake, network := openFake(t)
	service := &deleting{Interface: fake}
	w := wine.Start(t, service, network)
	var passed []string
	for _, c := range contract {
		passed = append(passed, "TestContract/service/"+strings.ReplaceAll(c.name, " ", "_"))
	}
	run(t, w, exe, []string{"SLUICE_TEST_HNS_NETWORK=" + network}, append(passed, "TestForeignLoadBalancers", "TestUnsupported", "TestVersions"))
	service.prepare(t, network)
	run(t, w, exe, []string{"SLUICE_TEST_HNS_DELETES=1"}, []string{"TestDeletedWhileListed"})
	run(t, w, exe, []string{"SLUICE_TEST_HNS=", "SLUICE_TEST_HNS_STOPPED=1"}, []string{"TestNotRunning"})
}

// deleting deletes one of three load balancers when they have been listed.
type deleting struct {
	hns.Interface
	armed atomic.Bool
}

func (d *deleting) LoadBalancers(ctx context.Context) (map[string]hns.LoadBalancer, error) {
	all, err := d.Interface.LoadBalancers(ctx)
	for id := range all {
		if d.armed.Swap(false) {
			err = errors.Join(err, d.DeleteLoadBalancer(ctx, id))
		}
	}
	return all, err
}

// prepare makes the three.
func (d *deleting) prepare(t *testing.T, network string) {
	t.Helper()
	n, err := d.Network(t.Context(), network)
	if err != nil {
		t.Fatal(err)
	}
	e := remote("10.1.2.3")
	e.Network = n.ID
	pod, err := d.CreateEndpoint(t.Context(), e)
	for _, vip := range []string{"10.96.0.10", "10.96.0.11", "10.96.0.12"} {
		_, err2 := d.CreateLoadBalancer(t.Context(), tcp(vip, pod))
		err = errors.Join(err, err2)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.armed.Store(true)
}

// run runs tests with variables set. They have to pass, and nothing else may be
// printed: hnslib logs by itself.
func run(t *testing.T, w *wine.Windows, exe string, env, passed []string) {
	t.Helper()
	cmd := w.Command(t.Context(), exe, "-test.v")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "level=") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, name := range passed {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass\n%s", name, out)
		}
	}
}

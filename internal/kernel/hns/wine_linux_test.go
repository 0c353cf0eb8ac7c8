package hns_test

import (
	"path/filepath"
	"strings"
	"testing"

	"sluice/test/wine"
)

// TestOnWindows runs the tests of this package that are for Windows: there the
// service is that of Windows up to the libraries of the system.
func TestOnWindows(t *testing.T) {
	if testing.Short() {
		t.Skip("starting Wine takes seconds")
	}
	exe := filepath.Join(t.TempDir(), "hns.test.exe")
	if err := wine.Compile(t.Context(), "sluice/internal/kernel/hns", exe); err != nil {
		t.Fatal(err)
	}
	service, network := openFake(t)
	w := wine.Start(t, service, network)
	var passed []string
	for _, c := range contract {
		passed = append(passed, "TestContract/service/"+strings.ReplaceAll(c.name, " ", "_"))
	}
	run(t, w, exe, []string{"SLUICE_TEST_HNS_NETWORK=" + network}, append(passed, "TestForeignLoadBalancers", "TestVersions"))
	run(t, w, exe, []string{"SLUICE_TEST_HNS=", "SLUICE_TEST_HNS_STOPPED=1"}, []string{"TestNotRunning"})
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

package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/test/daemon/testbed"
)

// TestWords calls the real program by both of its names with arguments that are no flags: none
// starts a daemon, and none is a subcommand of kube-proxy.
func TestWords(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	path := testbed.Binary(t)
	other := filepath.Join(t.TempDir(), "kube-proxy")
	if err := os.Symlink(path, other); err != nil {
		t.Fatal(err)
	}
	const flagsOnly = "kube-proxy takes flags only"
	serve := []string{"--manifests", bed.Dir, "--status-socket", bed.Socket}
	for _, tt := range []struct {
		program string
		word    string
		code    int
		says    string
	}{
		{other, "status", 1, flagsOnly},
		{other, "explain", 1, flagsOnly},
		{other, "bugreport", 1, flagsOnly},
		{other, "completion", 1, flagsOnly},
		{other, "help", 1, flagsOnly},
		{other, "man", 1, flagsOnly},
		{path, "statsu", 1, "did you mean sluice status?"},
		{path, "sttaus default/web", 1, "did you mean sluice status?"},
		{path, "serve", 1, `unexpected argument "serve"`},
		{path, "kube-proxy", 1, `unexpected argument "kube-proxy"`},
		{path, "completion bash", 0, "complete -o default"},
		{path, "man", 0, ".TH"},
		{path, "help", 0, "Usage:"},
	} {
		words := strings.Fields(tt.word)
		for _, args := range [][]string{words, slices.Concat(serve, words), slices.Concat(words, serve)} {
			out, code := bed.Call(tt.program, args...)
			if code != tt.code || !strings.Contains(out, tt.says) {
				t.Errorf("%s %q: exit code %d, want %d; said %.200q, want %q", filepath.Base(tt.program), args, code, tt.code, out, tt.says)
			}
			if tt.code == 0 {
				break // these have no such flags
			}
		}
	}
	if got := bed.Tables(); got != "" {
		t.Errorf("the kernel has %q", got)
	}
}

// TestKubeProxyName answers as kube-proxy when called so.
func TestKubeProxyName(t *testing.T) {
	path := testbed.Binary(t)
	link := filepath.Join(t.TempDir(), "kube-proxy")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(link, "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "kube-proxy [flags]") {
		t.Errorf("%v:\n%.300s", err, out)
	}
}

package guest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/test/vm/guest"
)

// run boots the kernel of Debian 12 for a shell script.
func run(t *testing.T, script string, timeout time.Duration) (status int, output, results string, err error) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a virtual machine, whose packages may have to be fetched first; left out by -short")
	}
	cache, err := guest.Open(func(what string) { t.Log(what) })
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	input := filepath.Join(dir, "it's input")
	if err := os.WriteFile(input, []byte("from outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	j := guest.Job{
		Kernel: "6.1", Command: []string{"sh", "-c", script}, Env: []string{"WORD=it's here"},
		Results: filepath.Join(dir, "results"), Output: &out, Timeout: timeout,
	}
	j.Add("/src/a/input", input)
	status, err = cache.Run(t.Context(), j)
	return status, out.String(), j.Results, err
}

func TestOutputFilesAndStatusComeBack(t *testing.T) {
	status, output, results, err := run(t, `echo "$WORD"; mkdir -p /results/b; cat a/input > /results/b/copy; exit 7`, guest.DefaultTimeout)
	if err != nil || status != 7 {
		t.Fatalf("status is %d, error %v, want 7 and none", status, err)
	}
	if !strings.Contains(output, "\nit's here\n") {
		t.Errorf("the output lacks what was printed:\n%s", output)
	}
	if got, err := os.ReadFile(filepath.Join(results, "b", "copy")); string(got) != "from outside\n" {
		t.Errorf("the file is %q, %v", got, err)
	}
}

func TestAGuestThatDiesOrHangs(t *testing.T) {
	for name, c := range map[string]struct {
		script  string
		timeout time.Duration
		want    string
	}{
		"dies":  {"echo so far; echo c > /proc/sysrq-trigger", guest.DefaultTimeout, "Kernel panic"},
		"hangs": {"echo so far; cat < /dev/ttyS1", 40 * time.Second, "not finished within 40s"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, _, err := run(t, c.script, c.timeout)
			if err == nil || !strings.Contains(err.Error(), "so far") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error does not say %q and what was on the console: %v", c.want, err)
			}
		})
	}
}

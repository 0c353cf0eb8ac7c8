package windows

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/statusapi"
)

// TestCommandLine needs no service of Windows.
func TestCommandLine(t *testing.T) {
	n := newNode(t)
	tests := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--version"}, 0, "windows/amd64"},
		{[]string{"--help"}, 0, "--root-hnsendpoint-name"},
		{[]string{"--network"}, 1, "Error: unknown flag: --network (did you mean --network-name? sluice --help lists the flags)"},
		{[]string{"--proxy-mode=nftables"}, 1, `--proxy-mode "nftables": no such mode; modes: kernelspace`},
		{[]string{"--source-vip=10.244.0"}, 1, `--source-vip "10.244.0": must be an IP address`},
		{[]string{"--windows-priorityclass=high"}, 1, `--windows-priorityclass "high": no such class`},
		{[]string{"--init-only"}, 1, "--init-only: there is nothing to prepare on Windows"},
		{[]string{"--windows-service", "--cleanup"}, 1, "--windows-service: connect to the service control manager"},
		{[]string{"--manifests", drive(n.dir)}, 1, "use --network-name or the environment variable KUBE_NETWORK"},
		{[]string{"--manifests", drive(n.dir) + `\nowhere`}, 1, `nowhere": open`},
		{[]string{"status", "--socket", drive(n.dir) + `\none`}, 2, "connect to the daemon at"},
	}
	for _, tt := range tests {
		out, code := n.run(tt.args...)
		if code != tt.code || !strings.Contains(out, tt.want) {
			t.Errorf("sluice %s: exit code %d; want %d and %q in\n%s", strings.Join(tt.args, " "), code, tt.code, tt.want, out)
		}
	}
}

// TestLife starts from a folder, follows it, stops, starts again and cleans up.
func TestLife(t *testing.T) {
	n := newNode(t)
	n.write("web", local, remote)
	first := n.start(n.flags()...)
	n.wait(first.Log, local, remote)
	about := n.about()
	if about.Mode != "kernelspace" || about.Name != "node-1" || !about.Health.Healthy {
		t.Errorf("the daemon tells %+v", about)
	}
	if out := n.get(statusapi.ServicesPath); !strings.Contains(out, `"name":"web"`) {
		t.Errorf("the daemon tells %s", out)
	}
	for path, counted := range map[string]string{statusapi.TrafficPath: `"connections"`, statusapi.ServicesPath: `"traffic"`} {
		if out := n.get(path); strings.Contains(out, counted) || path == statusapi.TrafficPath && !strings.Contains(out, `"off":"mode kernelspace counts no traffic"`) {
			t.Errorf("the daemon tells of traffic, which nobody counts: %s", out)
		}
	}
	if strings.Contains(first.Log(), "Traffic of Services is not counted") {
		t.Errorf("what is so by design is told as an error:\n%s", first.Log())
	}

	n.write("web", local, other)
	n.wait(first.Log, local, other)
	n.write("web", other)
	n.wait(first.Log, other)
	first.stop()
	if !n.serves(other) {
		t.Errorf("after the end HNS has %q", n.balancers())
	}

	n.hns.Reset()
	second := n.start(n.flags("--windows-priorityclass=HIGH_PRIORITY_CLASS", "--status-socket="+drive(n.dir)+`\private\socket`)...)
	if _, done := n.hns.Reset(); len(done) > 0 {
		t.Errorf("a restart changed %q", done)
	}
	if strings.Contains(second.Log(), "Cannot set the priority class") {
		t.Errorf("no priority class:\n%s", second.Log())
	}
	// Wine has no unix sockets. The folder is made before, and what fails is no reason to stop.
	if _, err := os.Stat(filepath.Join(n.dir, "private", "socket.lock")); err != nil {
		t.Errorf("%v\n%s", err, second.Log())
	}
	n.write("web", remote)
	n.wait(second.Log, remote)
	second.stop()

	out, code := n.run("--cleanup", "--network-name="+pods)
	if left := n.hns.State(); code != 0 || len(left) != 1 || !strings.Contains(left[0], "endpoint local ["+local+"]") {
		t.Errorf("after the clean-up, exit code %d, HNS has %q\n%s", code, left, out)
	}
}

// about asks the daemon about itself.
func (n *node) about() (about statusapi.Node) {
	n.t.Helper()
	if err := json.Unmarshal([]byte(n.get(statusapi.NodePath)), &about); err != nil {
		n.t.Fatal(err)
	}
	return about
}

// get asks the status API.
func (n *node) get(path string) string {
	n.t.Helper()
	answer, err := http.Get("http://" + n.status + path)
	if err != nil {
		n.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

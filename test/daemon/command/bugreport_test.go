package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice/test/daemon/testbed"
)

// TestBugReport creates a report next to the real daemon in each mode, with secrets within reach:
// it contains the daemon's status and rules, and none of the secrets.
func TestBugReport(t *testing.T) {
	const secret = "PLANTED-SECRET"
	for mode, rules := range map[string]string{
		"nftables": "sluice-ip.txt", "iptables": "iptables.txt", "userspace": "sluice-userspace-ip.txt", "ebpf": "sluice-ip.txt",
	} {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			if err := os.WriteFile(kubeconfig, []byte("users: [{name: x, user: {token: "+secret+"}}]\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			d := bed.Start(func(c *exec.Cmd) { c.Env = append(os.Environ(), "TOKEN="+secret) },
				"--boot-id-file", "https://me:"+secret+"@api", "--machine-id-file", kubeconfig)
			for _, what := range []string{"First sync done", `server="metrics"`, `server="status"`} {
				d.AwaitLog(what)
			}
			log, report := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "r.tar.gz")
			if err := os.WriteFile(log, []byte(d.Log()+"Authorization: Bearer "+secret+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			path := testbed.Binary(t)
			said, code := bed.Call(path, "bugreport", "--socket", bed.Socket, "--log", log, "-o", report)
			if code != 0 || !strings.Contains(said, "check the file before you send it") || strings.Contains(said, "Could not be read") {
				t.Fatalf("exit code %d:\n%s", code, said)
			}
			dir := t.TempDir()
			bed.Run("tar", "-xzf", report, "-C", dir, "--strip-components=1")
			for file, want := range map[string]string{
				rules: testbed.ClusterIP.Addr().String(), "rules.txt": testbed.ClusterIP.Addr().String(), "services.json": `"web"`, "node.json": `"mode": "` + mode + `"`, "log.txt": "First sync done",
				"metrics.txt": "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "configuration.json": "kubeproxy.config.k8s.io",
				"process.txt": "--machine-id-file " + kubeconfig, "kernel.txt": "Linux version", "sysctls.txt": "nf_conntrack_max", "README.txt": "node.json",
			} {
				if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(text), want) {
					t.Errorf("%s lacks %q: %v", file, want, err)
				}
			}
			if out, err := exec.Command("grep", "-rl", secret, dir).Output(); err == nil {
				t.Errorf("leaked in %s", out)
			}
			if said, code := bed.Call(path, "bugreport", "--socket", bed.Socket, "-o", report); code != 2 || !strings.Contains(said, "file exists (-o names another file") {
				t.Errorf("a report is overwritten: exit code %d, %s", code, said)
			}
		})
	}
}

package command

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sluice/test/daemon/testbed"
)

const configFile = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clusterCIDR: "%s"
nodePortAddresses: [%s]
metricsBindAddress: "%s"
`

// TestReload changes the file under a running daemon, as a ConfigMap volume does.
func TestReload(t *testing.T) {
	bed := testbed.New(t)
	np := strings.Replace(testbed.Service("web", testbed.ClusterIP, testbed.PodA), "ports: [{name: http, port: 80}]", "type: NodePort\n  ports: [{name: http, port: 80, nodePort: 30080}]", 1)
	bed.Write("web.yaml", np)
	volume := t.TempDir()
	config := filepath.Join(volume, "config.conf")
	swap(t, volume, 1, fmt.Sprintf(configFile, "nftables", "10.0.0.0/8", "192.168.0.0/24", "127.0.0.1:10249"))
	d := bed.Start(func(c *exec.Cmd) {
		c.Args = append(c.Args[:1], "--config", config, "--manifests", bed.Dir, "--hostname-override", "test-node")
	})
	first, second := netip.MustParseAddrPort("192.168.0.2:30080"), netip.MustParseAddrPort("192.168.1.2:30080")
	testbed.Eventually(t, "the NodePort", bed.Answers(first, testbed.PodA))
	if bed.Answers(second, testbed.PodA)() {
		t.Error("NodePort is open on an address that was not asked for")
	}

	swap(t, volume, 2, "kind: nonsense\n")
	d.AwaitLog("config.conf")
	swap(t, volume, 3, fmt.Sprintf(configFile, "nftables", "10.0.0.0/8", "192.168.1.0/24", "127.0.0.1:11249"))
	testbed.Eventually(t, "the NodePort on the other address", bed.Answers(second, testbed.PodA))
	testbed.Eventually(t, "the metrics server at its new address", func() bool {
		code, _, err := bed.Get("http://127.0.0.1:11249/proxyMode")
		return err == nil && code == http.StatusOK
	})
	if bed.Answers(first, testbed.PodA)() {
		t.Error("NodePort is still open on the first address")
	}

	swap(t, volume, 4, strings.Replace(fmt.Sprintf(configFile, "nftables", "10.0.0.0/8", "192.168.1.0/24", "127.0.0.1:11249"), "mode:", "oomScoreAdj: -500\nmode:", 1))
	testbed.Eventually(t, "a line about the restart", func() bool {
		return strings.Contains(d.Log(), `need a restart, which nodes do at different times" in=`)
	})
	swap(t, volume, 5, fmt.Sprintf(configFile, "nftables", "10.0.0.0/8", "192.168.1.0/24", "127.0.0.1:11249"))
	d.AwaitLog("no longer needs a restart")
	if !bed.Answers(second, testbed.PodA)() {
		t.Error("the rules did not stay")
	}
	if code := d.End(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestModeChange changes the mode in a node's own file, under a running daemon:
// to one that the node cannot do, and then to one that it can. The process and
// open connections stay.
func TestModeChange(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	dir := t.TempDir()
	file, programs, note := filepath.Join(dir, "config.conf"), filepath.Join(dir, "bin"), ""
	write := func(mode string) {
		t.Helper()
		text := fmt.Sprintf(configFile, mode, "10.0.0.0/8", "192.168.0.0/24", "127.0.0.1:10249") + note
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("nftables")
	d := bed.Start(func(c *exec.Cmd) {
		c.Args = append(c.Args[:1], "--config", file, "--manifests", bed.Dir, "--hostname-override", "test-node", "--status-socket", bed.Socket)
		c.Env = []string{"PATH=" + programs}
	})
	mode := func() string {
		_, body, err := bed.Get("http://127.0.0.1:10249/proxyMode")
		if err != nil {
			return ""
		}
		return body
	}
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	open := bed.OpenEcho()

	write("iptables")
	d.AwaitLog("probe mode iptables: ")
	if mode() != "nftables" || !bed.Answers(testbed.ClusterIP, testbed.PodA)() {
		t.Error("the old mode did not stay in force")
	}
	if err := os.Symlink("/usr/sbin", programs); err != nil {
		t.Fatal(err)
	}
	note = "# Now it can.\n"
	write("iptables")
	testbed.Eventually(t, "the other mode", func() bool { return mode() == "iptables" })
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	testbed.Eventually(t, "the end of the old rules", func() bool { return !strings.Contains(bed.Tables(), "sluice") })
	bed.WantAlive(open, "after the change")
	if !strings.Contains(d.Log(), `Restarting: the configuration changed in fields that need a restart: mode from "nftables" to "iptables"`) {
		t.Error("the log does not say why it restarts")
	}
	if code := d.End(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d of the process that was started", code)
	}
}

// swap replaces the volume's content as kubelet does: a new folder, and a link
// to it that is renamed into place.
func swap(t *testing.T, volume string, version int, text string) {
	t.Helper()
	dir := filepath.Join(volume, fmt.Sprintf("..%d", version))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.conf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(volume, "..data_tmp")
	if err := os.Symlink(dir, tmp); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(volume, "..data")); err != nil {
		t.Fatal(err)
	}
	if version == 1 {
		if err := os.Symlink(filepath.Join("..data", "config.conf"), filepath.Join(volume, "config.conf")); err != nil {
			t.Fatal(err)
		}
	}
}

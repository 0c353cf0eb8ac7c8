package daemon

import (
	"encoding/json"
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

// TestServers asks the health and metrics servers what operators ask.
func TestServers(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: test-node}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.2}]}\n")
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Start(nil)
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	testbed.Eventually(t, "health", func() bool {
		code, body := bed.Health()
		return code == http.StatusOK && strings.Contains(body, `"nodeEligible":true`)
	})
	for path, want := range map[string]string{
		"/metrics":   `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`,
		"/proxyMode": "nftables",
		"/flagz":     "\nhostname-override=test-node\n",
		"/statusz":   "\nEmulation version: 1.37\n",
		"/healthz":   "ok",
		"/configz":   `"kubeproxy.config.k8s.io"`,
	} {
		code, body, err := bed.Get("http://127.0.0.1:10249" + path)
		if err != nil || code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %v, without %q:\n%.300s", path, code, err, want, body)
		}
	}
	_, body, _ := bed.Get("http://127.0.0.1:10249/configz")
	var z map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &z); err != nil || z["kubeproxy.config.k8s.io"]["kind"] != "KubeProxyConfiguration" {
		t.Errorf("configz: %v, %.200s", err, body)
	}
	if code, _, _ := bed.Get("http://127.0.0.1:10249/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("pprof answers %d without --profiling", code)
	}
}

// TestNoServers switches both servers off.
func TestNoServers(t *testing.T) {
	bed := testbed.New(t)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Start(nil, "--healthz-bind-address", "", "--metrics-bind-address", "")
	testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	for _, port := range []int{10249, 10256} {
		if code, _, err := bed.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port)); err == nil {
			t.Errorf("port %d answers %d", port, code)
		}
	}
}

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
	path := testbed.Binary(t)
	d := bed.Start(func(c *exec.Cmd) {
		c.Args = []string{path, "--config", config, "--manifests", bed.Dir, "--hostname-override", "test-node"}
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

// TestInitOnly prepares the node without an API server, and without rules but
// those that keep others from loopback.
func TestInitOnly(t *testing.T) {
	bed := testbed.New(t)
	path := testbed.Binary(t)
	d := bed.Start(func(c *exec.Cmd) {
		c.Args = []string{path, "--init-only", "--conntrack-udp-timeout", "77s", "--oom-score-adj", "0"}
	})
	if code := d.Wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := bed.Run("cat", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"); got != "77\n" {
		t.Errorf("the UDP time-out is %q", got)
	}
	if got := bed.Tables(); got != "table ip sluice" || localnet(bed) != "1" {
		t.Errorf("the kernel has %q, route_localnet is %s", got, localnet(bed))
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

// TestHealthCheckNodePort answers a load balancer's question, and stops when the
// last local endpoint is gone.
func TestHealthCheckNodePort(t *testing.T) {
	bed := testbed.New(t)
	lb := func(endpoints ...netip.Addr) string {
		return strings.Replace(testbed.Service("web", testbed.ClusterIP, endpoints...), "ports: [{name: http, port: 80}]",
			"type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30100\n  ports: [{name: http, port: 80, nodePort: 30080}]", 1)
	}
	bed.Write("web.yaml", lb(testbed.PodA, testbed.PodB))
	d := bed.Start(nil)
	check := func(code int, local int) func() bool {
		return func() bool {
			got, body, err := bed.Get("http://192.168.0.2:30100/")
			return err == nil && got == code && strings.Contains(body, fmt.Sprintf(`"localEndpoints": %d`, local))
		}
	}
	testbed.Eventually(t, "two endpoints", check(http.StatusOK, 2))
	bed.Write("web.yaml", strings.ReplaceAll(lb(testbed.PodA, testbed.PodB), "test-node", "other-node"))
	testbed.Eventually(t, "no endpoint", check(http.StatusServiceUnavailable, 0))
	d.End(syscall.SIGTERM)
}

// leftovers are rules like those of kube-proxy's iptables mode, which lead to an
// endpoint that is gone, beside a rule of somebody else.
const leftovers = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-BBBBBBBBBBBBBBBB - [0:0]
:THEIRS - [0:0]
-A PREROUTING -j THEIRS
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -d 172.30.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-BBBBBBBBBBBBBBBB
-A KUBE-SEP-BBBBBBBBBBBBBBBB -p tcp -m tcp -j DNAT --to-destination 10.0.0.99:8080
COMMIT
`

// TestTakeover finds kube-proxy's iptables rules in its way: they are gone soon
// after ours are there, and nobody else's is.
func TestTakeover(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			bed := testbed.New(t)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Run("sh", "-ec", "iptables-"+variant+"-restore <<'END'\n"+leftovers+"END")
			d := bed.Start(nil)
			testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			d.AwaitLog("Removed objects of another service proxy")
			out := bed.Run("iptables-" + variant + "-save")
			if strings.Contains(out, "KUBE-") || !strings.Contains(out, "-j THEIRS") {
				t.Errorf("the rules are:\n%s", out)
			}
		})
	}
}

// TestNodeManifestGoes has another Node take the place of this one in the folder, which need
// have none: the daemon is as healthy as one that starts without it.
func TestNodeManifestGoes(t *testing.T) {
	bed := testbed.New(t)
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: test-node}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.2}]}\n"
	bed.Write("node.yaml", node)
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
	bed.Start(nil)
	healthy := func() bool {
		code, _ := bed.Health()
		return code == http.StatusOK
	}
	testbed.Eventually(t, "health", healthy)
	bed.Write("node.yaml", strings.Replace(node, "test-node", "another", 1))
	bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
	testbed.Eventually(t, "what was written after it", bed.Answers(testbed.ClusterIP, testbed.PodB))
	bed.AwaitSync()
	if !healthy() {
		t.Error("not healthy without a Node")
	}
}

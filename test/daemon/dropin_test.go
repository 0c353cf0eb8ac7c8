package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/proxy"
)

// get asks one of the daemon's servers, from the node itself.
func (s *site) get(url string) (code int, body string, err error) {
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: s.dial},
	}
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// dial connects from the node.
func (s *site) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	return s.lab.Node().Dial(ctx, proxy.TCP, netip.Addr{}, netip.MustParseAddrPort(addr))
}

// TestServers asks the health and metrics servers what operators ask.
func TestServers(t *testing.T) {
	s := newSite(t)
	s.write("node.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: test-node}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.2}]}\n")
	s.write("web.yaml", service("web", clusterIP, podA))
	s.start(nil)
	eventually(t, "the Service", s.answers(clusterIP, podA))
	eventually(t, "health", func() bool {
		code, body, err := s.get("http://127.0.0.1:10256/healthz")
		return err == nil && code == http.StatusOK && strings.Contains(body, `"nodeEligible":true`)
	})
	for path, want := range map[string]string{
		"/metrics":   `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`,
		"/proxyMode": "nftables",
		"/flagz":     "\nhostname-override=test-node\n",
		"/statusz":   "\nEmulation version: 1.37\n",
		"/healthz":   "ok",
		"/configz":   `"kubeproxy.config.k8s.io"`,
	} {
		code, body, err := s.get("http://127.0.0.1:10249" + path)
		if err != nil || code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %v, without %q:\n%.300s", path, code, err, want, body)
		}
	}
	_, body, _ := s.get("http://127.0.0.1:10249/configz")
	var z map[string]map[string]any
	if err := json.Unmarshal([]byte(body), &z); err != nil || z["kubeproxy.config.k8s.io"]["kind"] != "KubeProxyConfiguration" {
		t.Errorf("configz: %v, %.200s", err, body)
	}
	if code, _, _ := s.get("http://127.0.0.1:10249/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("pprof answers %d without --profiling", code)
	}
}

// TestNoServers switches both servers off.
func TestNoServers(t *testing.T) {
	s := newSite(t)
	s.write("web.yaml", service("web", clusterIP, podA))
	s.start(nil, "--healthz-bind-address", "", "--metrics-bind-address", "")
	eventually(t, "the Service", s.answers(clusterIP, podA))
	for _, port := range []int{10249, 10256} {
		if code, _, err := s.get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port)); err == nil {
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
	s := newSite(t)
	np := strings.Replace(service("web", clusterIP, podA), "ports: [{name: http, port: 80}]", "type: NodePort\n  ports: [{name: http, port: 80, nodePort: 30080}]", 1)
	s.write("web.yaml", np)
	volume := t.TempDir()
	config := filepath.Join(volume, "config.conf")
	swap(t, volume, 1, fmt.Sprintf(configFile, "nftables", "10.0.0.0/8", "192.168.0.0/24", "127.0.0.1:10249"))
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	d := s.start(func(c *exec.Cmd) {
		c.Args = []string{path, "--config", config, "--manifests", s.dir, "--hostname-override", "test-node"}
	})
	first, second := netip.MustParseAddrPort("192.168.0.2:30080"), netip.MustParseAddrPort("192.168.1.2:30080")
	eventually(t, "the NodePort", s.answers(first, podA))
	if s.answers(second, podA)() {
		t.Error("NodePort is open on an address that was not asked for")
	}

	swap(t, volume, 2, "kind: nonsense\n")
	eventually(t, "a line about the bad file", func() bool { return strings.Contains(d.log(), "config.conf") })
	swap(t, volume, 3, fmt.Sprintf(configFile, "nftables", "10.0.0.0/8", "192.168.1.0/24", "127.0.0.1:11249"))
	eventually(t, "the NodePort on the other address", s.answers(second, podA))
	eventually(t, "the metrics server at its new address", func() bool {
		code, _, err := s.get("http://127.0.0.1:11249/proxyMode")
		return err == nil && code == http.StatusOK
	})
	if s.answers(first, podA)() {
		t.Error("NodePort is still open on the first address")
	}

	swap(t, volume, 4, strings.Replace(fmt.Sprintf(configFile, "nftables", "10.0.0.0/8", "192.168.1.0/24", "127.0.0.1:11249"), "mode:", "oomScoreAdj: -500\nmode:", 1))
	eventually(t, "a line about the restart", func() bool {
		return strings.Contains(d.log(), `need a restart, which nodes do at different times" in=`)
	})
	swap(t, volume, 5, fmt.Sprintf(configFile, "nftables", "10.0.0.0/8", "192.168.1.0/24", "127.0.0.1:11249"))
	eventually(t, "a line that there is none", func() bool { return strings.Contains(d.log(), "no longer needs a restart") })
	if !s.answers(second, podA)() {
		t.Error("the rules did not stay")
	}
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestModeChange changes the mode in a node's own file, under a running daemon:
// to one that the node cannot do, and then to one that it can. The process and
// open connections stay.
func TestModeChange(t *testing.T) {
	s := newSite(t)
	echo := s.echo(podA, 9090)
	s.write("web.yaml", service("web", clusterIP, podA))
	s.write("echo.yaml", strings.ReplaceAll(service("echo", secondIP, podA), "port: 8080", fmt.Sprintf("port: %d", echo)))
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
	d := s.start(func(c *exec.Cmd) {
		c.Args = append(c.Args[:1], "--config", file, "--manifests", s.dir, "--hostname-override", "test-node")
		c.Env = []string{"PATH=" + programs}
	})
	mode := func() string {
		_, body, err := s.get("http://127.0.0.1:10249/proxyMode")
		if err != nil {
			return ""
		}
		return body
	}
	eventually(t, "the Service", s.answers(clusterIP, podA))
	open, err := s.client.Dial(t.Context(), proxy.TCP, client, secondIP)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()

	write("iptables")
	eventually(t, "a line about the mode", func() bool { return strings.Contains(d.log(), "probe mode iptables: ") })
	if mode() != "nftables" || !s.answers(clusterIP, podA)() {
		t.Error("the old mode did not stay in force")
	}
	if err := os.Symlink("/usr/sbin", programs); err != nil {
		t.Fatal(err)
	}
	note = "# Now it can.\n"
	write("iptables")
	eventually(t, "the other mode", func() bool { return mode() == "iptables" })
	eventually(t, "the Service", s.answers(clusterIP, podA))
	eventually(t, "the end of the old rules", func() bool { return !strings.Contains(s.tables(), "sluice") })
	s.alive(open, "after the change")
	if !strings.Contains(d.log(), `Restarting: the configuration changed in fields that need a restart: mode from "nftables" to "iptables"`) {
		t.Error("the log does not say why it restarts")
	}
	if code := d.end(syscall.SIGTERM); code != 0 {
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
	s := newSite(t)
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	d := s.start(func(c *exec.Cmd) {
		c.Args = []string{path, "--init-only", "--conntrack-udp-timeout", "77s", "--oom-score-adj", "0"}
	})
	if code := d.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	var got []byte
	if err := s.lab.Node().Do(func() (err error) {
		got, err = os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
		return err
	}); err != nil || strings.TrimSpace(string(got)) != "77" {
		t.Errorf("the UDP time-out is %q, %v", got, err)
	}
	if got := s.tables(); got != "table ip sluice" || s.localnet() != "1" {
		t.Errorf("the kernel has %q, route_localnet is %s", got, s.localnet())
	}
}

// TestKubeProxyName answers as kube-proxy when called so.
func TestKubeProxyName(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
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
	s := newSite(t)
	lb := func(endpoints ...netip.Addr) string {
		return strings.Replace(service("web", clusterIP, endpoints...), "ports: [{name: http, port: 80}]",
			"type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 30100\n  ports: [{name: http, port: 80, nodePort: 30080}]", 1)
	}
	s.write("web.yaml", lb(podA, podB))
	d := s.start(nil)
	check := func(code int, local int) func() bool {
		return func() bool {
			got, body, err := s.get("http://192.168.0.2:30100/")
			return err == nil && got == code && strings.Contains(body, fmt.Sprintf(`"localEndpoints": %d`, local))
		}
	}
	eventually(t, "two endpoints", check(http.StatusOK, 2))
	s.write("web.yaml", strings.ReplaceAll(lb(podA, podB), "test-node", "other-node"))
	eventually(t, "no endpoint", check(http.StatusServiceUnavailable, 0))
	d.end(syscall.SIGTERM)
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
			s := newSite(t)
			s.write("web.yaml", service("web", clusterIP, podA))
			if err := s.lab.Node().Do(func() error {
				cmd := exec.Command("iptables-" + variant + "-restore")
				cmd.Stdin = strings.NewReader(leftovers)
				return cmd.Run()
			}); err != nil {
				t.Fatal(err)
			}
			d := s.start(nil)
			eventually(t, "the Service", s.answers(clusterIP, podA))
			eventually(t, "a line about it", func() bool { return strings.Contains(d.log(), "Removed objects of another service proxy") })
			var out []byte
			if err := s.lab.Node().Do(func() (err error) {
				out, err = exec.Command("iptables-" + variant + "-save").Output()
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(out), "KUBE-") || !strings.Contains(string(out), "-j THEIRS") {
				t.Errorf("the rules are:\n%s", out)
			}
		})
	}
}

// TestNodeManifestGoes has another Node take the place of this one in the folder, which need
// have none: the daemon is as healthy as one that starts without it.
func TestNodeManifestGoes(t *testing.T) {
	s := newSite(t)
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: test-node}\nstatus: {addresses: [{type: InternalIP, address: 192.168.0.2}]}\n"
	s.write("node.yaml", node)
	s.write("web.yaml", service("web", clusterIP, podA))
	s.start(nil)
	healthy := func() bool {
		code, _, err := s.get("http://127.0.0.1:10256/healthz")
		return err == nil && code == http.StatusOK
	}
	eventually(t, "health", healthy)
	s.write("node.yaml", strings.Replace(node, "test-node", "another", 1))
	s.write("web.yaml", service("web", clusterIP, podB))
	eventually(t, "what was written after it", s.answers(clusterIP, podB))
	s.await()
	if !healthy() {
		t.Error("not healthy without a Node")
	}
}

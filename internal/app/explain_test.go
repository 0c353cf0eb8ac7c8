package app

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/cli"
	"sluice/internal/statusapi"
)

// exitOf returns the exit code of the process for an error.
func exitOf(err error) int {
	if exit, ok := errors.AsType[*cli.ExitError](err); ok {
		return exit.Code
	}
	if err != nil {
		return -1
	}
	return 0
}

// folderOf returns a folder with one file.
func folderOf(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestExplainFolder explains a folder, without a daemon or a kernel.
func TestExplainFolder(t *testing.T) {
	dir := folderOf(t, `
{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: NodePort, clusterIP: 10.96.0.1, ports: [{name: http, port: 80, nodePort: 30080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: none}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: bare}, spec: {clusterIP: 10.96.0.3}}
---
{apiVersion: v1, kind: Service, metadata: {name: alias}, spec: {type: ExternalName, externalName: example.com}}
---
{apiVersion: v1, kind: Service, metadata: {name: other, labels: {service.kubernetes.io/service-proxy-name: another}}, spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.5], nodeName: node-1}, {addresses: [10.244.1.5], nodeName: node-2, conditions: {ready: false}}]
`)
	tests := []struct {
		args []string
		exit int
		want string // part of what is printed, or of the error
	}{
		{[]string{"default/web"}, 0, "FORWARD  Forwarded"},
		{[]string{"default/web", "--from", "10.244.0.9"}, 0, "our pod: "},
		{[]string{"192.0.2.1:30080", "--from", "203.0.113.1"}, 0, "NodePort 192.0.2.1:30080"},
		{[]string{"192.0.2.7:30080"}, 1, "30080 is a NodePort of Service default/web"},
		{[]string{"192.0.2.7:30080", "--node-addresses", "192.0.2.7"}, 1, "NodePortClosedHere"},
		{[]string{"192.0.2.7:30080", "--node-addresses", "192.0.2.7", "--nodeport-addresses", "192.0.2.0/24"}, 0, "Forwarded"},
		{[]string{"default/none"}, 1, "Headless"},
		{[]string{"default/bare"}, 1, "NoPorts"},
		{[]string{"10.96.0.3:80"}, 1, "10.96.0.3 is an address of Service default/bare, which is not served"},
		{[]string{"default/alias"}, 1, "UNTOUCHED  ExternalName\n           Service default/alias is not served here: it is a DNS name"},
		{[]string{"default/other"}, 1, "OtherProxy"},
		{[]string{"10.96.0.2:80"}, 1, "OtherProxy"},
		{[]string{"10.96.0.1:81"}, 1, "PortNotOfService"},
		{[]string{"default/web", "-o", "json"}, 0, `"reason": "Forwarded"`},
		{[]string{"default/web", "-o", "yaml"}, 0, "reason: Forwarded"},
		{[]string{"default/web", "--hostname-override", "node-7"}, 0, "the folder has no Node node-7"},
		{[]string{"default/web", "-o", "xml"}, 2, `--output "xml": want text, json, yaml`},
		{[]string{"default/wen"}, 2, "no Service default/wen"},
		{[]string{"default/web:81"}, 2, "no port 81 of Service default/web"},
		{[]string{"default/web", "--from", "::1"}, 2, "has no address of that family"},
		{[]string{"default/web", "--node-addresses", "x"}, 2, `--node-addresses: "x" is not an IP address`},
		{[]string{}, 2, "got 0 targets"},
		{[]string{"default/web", "--form", "10.0.0.1"}, 2, "did you mean --from?"},
	}
	for _, tt := range tests {
		args := append([]string{"explain", "--manifests", dir, "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16", "--proxy-mode", "nftables"}, tt.args...)
		out, err := execute(t, args...)
		if err != nil {
			out += err.Error()
		}
		if exitOf(err) != tt.exit || !strings.Contains(out, tt.want) || tt.exit == 2 && strings.Contains(err.Error(), "\n") {
			t.Errorf("explain %q: exit %d\n%s\nwant exit %d and %q", tt.args, exitOf(err), out, tt.exit, tt.want)
		}
	}
}

// TestExplainLive queries a daemon, and checks that one which does not answer is
// reported in one line.
func TestExplainLive(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	if _, err := execute(t, "explain", "default/web", "--socket", socket); exitOf(err) != 2 || !strings.Contains(err.Error(), "is sluice running") {
		t.Errorf("without a daemon: %v", err)
	}
	if _, err := execute(t, "explain", "default/web", "--cluster-cidr", "10.0.0.0/8"); exitOf(err) != 2 || !strings.Contains(err.Error(), "needs --manifests DIR") {
		t.Errorf("with what a daemon was told: %v", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(statusapi.VersionHeader, statusapi.Version)
		if r.URL.Path != statusapi.ExplainPath || r.URL.RawQuery != "from=10.0.0.1&in=eth0&proto=udp&to=default%2Fdns" {
			w.WriteHeader(http.StatusBadRequest)
		}
		_ = json.NewEncoder(w).Encode(statusapi.Explanation{Reason: statusapi.Forwarded, Kernel: statusapi.KernelCheck{State: statusapi.KernelDiffers}})
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	out, err := execute(t, "explain", "default/dns", "--socket", socket, "--from", "10.0.0.1", "--in", "eth0", "--proto", "udp")
	if exitOf(err) != 1 || !strings.Contains(out, "DIFFERS") {
		t.Errorf("exit %d, %v\n%s", exitOf(err), err, out)
	}
	if _, err := execute(t, "explain", "default/web", "--socket", socket); exitOf(err) != 2 {
		t.Errorf("what the daemon refuses: %v", err)
	}
}

// TestExplainConnect makes a real connection, and checks that the endpoint which
// answered is named, or why none did.
func TestExplainConnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	status, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	protocol := "TCP"
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(statusapi.VersionHeader, statusapi.Version)
		e := statusapi.Explanation{Reason: statusapi.Forwarded, Packet: statusapi.ExplainedPacket{Protocol: protocol, To: l.Addr().String()}}
		if from, port := r.URL.Query().Get("from"), r.URL.Query().Get("port"); from == "127.0.0.1" {
			e.Flows = &statusapi.OpenFlows{Items: []statusapi.OpenFlow{{Client: from + ":1", Endpoint: "10.0.0.1:1"}, {Client: from + ":" + port, Endpoint: "10.0.0.2:2"}}}
			if c, err := l.Accept(); err == nil { // the connection is open while it is explained again
				if c.RemoteAddr().String() != from+":"+port {
					t.Errorf("it asks about port %s, and connects from %v", port, c.RemoteAddr())
				}
				_ = c.Close()
			}
		}
		_ = json.NewEncoder(w).Encode(e)
	})}
	go func() { _ = server.Serve(status) }()
	t.Cleanup(func() { _ = server.Close() })
	connect := func(args ...string) (string, error) {
		return execute(t, append([]string{"explain", "default/web", "--connect", "--socket", socket}, args...)...)
	}
	if out, err := connect(); err != nil || !strings.Contains(out, "answered by 10.0.0.2:2 after ") {
		t.Errorf("error %v\n%s", err, out)
	}
	_ = l.Close()
	if out, err := connect(); exitOf(err) != 1 || !strings.Contains(out, "Connect    FAILED after ") || !strings.Contains(out, "refused; it was sent to\n           10.0.0.2:2\n") || !strings.Contains(out, "connect to 10.0.0.2:2 directly") {
		t.Errorf("nobody there: exit %d\n%s", exitOf(err), out)
	}
	if _, err := connect("--from", "192.0.2.9"); exitOf(err) != 2 || !strings.Contains(err.Error(), "192.0.2.9 is not an address of this node") {
		t.Errorf("from an address that is not the node's: %v", err)
	}
	protocol = "UDP"
	if _, err := connect(); exitOf(err) != 2 || !strings.Contains(err.Error(), "only TCP has a handshake") {
		t.Errorf("UDP: %v", err)
	}
	if _, err := connect("--manifests", t.TempDir()); exitOf(err) != 2 || !strings.Contains(err.Error(), "need the rules of a running daemon") {
		t.Errorf("a folder: %v", err)
	}
}

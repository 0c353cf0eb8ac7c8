package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/internal/proxy"
)

// TestOffline resolves a folder as the daemon would: for the node and the flags of
// the command line, without objects of other proxies, and with the problems of files
// and objects.
func TestOffline(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"objects.yaml": `
{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, internalTrafficPolicy: Local, externalIPs: [198.51.100.1], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: xeb}, spec: {clusterIP: 10.96.0.3, externalIPs: [198.51.100.1], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: none}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: other, labels: {service.kubernetes.io/service-proxy-name: another}}, spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.5], nodeName: node-1}, {addresses: [10.244.1.5], nodeName: node-2}]
`,
		"broken.yaml": "kind: [",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := NewOptions()
	err := o.flagSubset(offlineFlags...).Parse([]string{"--manifests", dir, "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16", "--proxy-mode=nftables"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.offlinePlan()
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.offline(t.Context(), proxy.Families[:])
	if err != nil {
		t.Fatal(err)
	}
	s := got.resolver.State()
	if keys := s.Keys(); len(keys) != 2 || keys[0].String() != "default/web/TCP/IPv4" {
		t.Fatalf("rows of %v", keys)
	}
	row := s.Rows[s.Keys()[0]]
	if len(row.Local) != 1 || len(s.CIDRs) != 1 || len(s.Node.NodePorts) != 1 || len(s.Node.LocalPods.Sources) != 1 {
		t.Errorf("row %v, ranges %v, node %+v", row, s.CIDRs, s.Node)
	}
	if len(got.objects) != 7 || len(got.files) != 1 || !strings.HasPrefix(got.files[0].String(), "broken.yaml") {
		t.Errorf("%d objects, problems of files %v", len(got.objects), got.files)
	}
	if len(got.problems) != 1 || !strings.Contains(got.problems[0].String(), "default/xeb") {
		t.Errorf("problems %v", got.problems)
	}
}

// TestOfflineNeedsAFolder checks the error without --manifests.
func TestOfflineNeedsAFolder(t *testing.T) {
	if _, err := NewOptions().offlinePlan(); err == nil || err.Error() != "no source of Services: give --manifests DIR" {
		t.Errorf("error %v", err)
	}
}

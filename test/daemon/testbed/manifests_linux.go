package testbed

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// AllKinds is a Service that has all kinds of addresses and rules, and one without
// an endpoint.
const AllKinds = `
apiVersion: v1
kind: Service
metadata: {name: kinds}
spec:
  type: LoadBalancer
  clusterIP: 172.30.0.30
  clusterIPs: [172.30.0.30]
  ports: [{name: http, port: 80, nodePort: 30080}, {name: dns, protocol: UDP, port: 53, nodePort: 30053}]
  sessionAffinity: ClientIP
  externalIPs: [198.51.100.7]
  externalTrafficPolicy: Local
  healthCheckNodePort: 30900
  loadBalancerSourceRanges: [203.0.113.0/24]
status: {loadBalancer: {ingress: [{ip: 198.51.100.8}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kinds-1, labels: {kubernetes.io/service-name: kinds}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, protocol: UDP, port: 8053}]
endpoints:
- {addresses: [10.0.0.11], nodeName: test-node}
- {addresses: [10.0.0.12], nodeName: other-node}
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {type: NodePort, clusterIP: 172.30.0.31, ports: [{port: 80, nodePort: 30081}]}
`

// Write writes a manifest into the folder atomically.
func (b *Testbed) Write(name, text string) {
	b.T.Helper()
	tmp := filepath.Join(b.Dir, "."+name)
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		b.T.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(b.Dir, name)); err != nil {
		b.T.Fatal(err)
	}
}

// Service returns the manifests of a Service with endpoints, at port 8080 of the pods.
func Service(name string, vip netip.AddrPort, endpoints ...netip.Addr) string {
	kind := "IPv4"
	if vip.Addr().Is6() {
		kind = "IPv6"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec:\n  clusterIP: %q\n  ports: [{name: http, port: %d}]\n---\n", name, vip.Addr(), vip.Port())
	fmt.Fprintf(&b, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-1, labels: {kubernetes.io/service-name: %s}}\naddressType: %s\nports: [{name: http, port: 8080}]\nendpoints:\n", name, name, kind)
	for _, e := range endpoints {
		fmt.Fprintf(&b, "- {addresses: [%q], nodeName: test-node}\n", e)
	}
	return b.String()
}

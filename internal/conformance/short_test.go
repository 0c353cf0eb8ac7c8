package conformance

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestShortForm parses one group in the short form and in the API's form.
func TestShortForm(t *testing.T) {
	const short = `
version: 1
environment: {node: {name: test-node}}
groups:
- id: g
  family: IPv6
  services:
    - name: ns1/svc1
      type: LoadBalancer
      family: IPv6
      clusterIP: "fd00:172:30::41"
      externalIPs: [192.168.99.11]
      lbIngress: [{ip: 1.2.3.4, ipMode: Proxy}, {hostname: lb.example.com}]
      sourceRanges: [" 203.0.113.0/25"]
      etp: Local
      itp: Local
      healthCheckNodePort: 30000
      affinity: {clientIPTimeoutSeconds: 3}
      ports: [{name: p80, proto: UDP, port: 80, targetPort: 8080, nodePort: 3001}]
    - {name: ns1/svc2, ipFamilies: [IPv4, IPv6], clusterIPs: [172.30.0.42, "fd00:172:30::42"], ports: [{port: 80}]}
  slices:
    - {service: ns1/svc1, ports: [{name: p80, proto: UDP, port: null}], endpoints: [{ip: "fd00:10::1", extra_addresses: ["fd00:10::2"], node: n1, ready: false, serving: true, terminating: true}]}
    - {name: s, service: ns1/svc2, addressType: FQDN, ports: [], endpoints: [{ip: 10.0.0.1, zoneHints: [a, b], nodeHints: [n1]}]}
  phases: [{name: initial}, {name: gone, delete_slices: all, services: [{name: ns1/svc2, clusterIP: 172.30.0.42, ports: [{port: 81}]}]}]
  cases:
    - {id: a, from: pod, dst: 1.2.3.4, dport: 80, expect: drop, basis: derived, upstream_fails: [nftables], upstream_note: why}
`
	const long = `
groups:
- id: g
  services:
    - metadata: {namespace: ns1, name: svc1}
      spec:
        type: LoadBalancer
        ipFamilies: [IPv6]
        clusterIP: "fd00:172:30::41"
        externalIPs: [192.168.99.11]
        loadBalancerSourceRanges: [" 203.0.113.0/25"]
        externalTrafficPolicy: Local
        internalTrafficPolicy: Local
        healthCheckNodePort: 30000
        sessionAffinity: ClientIP
        sessionAffinityConfig: {clientIP: {timeoutSeconds: 3}}
        ports: [{name: p80, protocol: UDP, port: 80, targetPort: 8080, nodePort: 3001}]
      status: {loadBalancer: {ingress: [{ip: 1.2.3.4, ipMode: Proxy}, {hostname: lb.example.com}]}}
    - metadata: {namespace: ns1, name: svc2}
      spec: {ipFamilies: [IPv4, IPv6], clusterIPs: [172.30.0.42, "fd00:172:30::42"], ports: [{port: 80}]}
  slices:
    - metadata: {namespace: ns1, name: svc1-0, labels: {kubernetes.io/service-name: svc1}}
      addressType: IPv6
      ports: [{name: p80, protocol: UDP, port: null}]
      endpoints: [{addresses: ["fd00:10::1", "fd00:10::2"], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}]
    - metadata: {namespace: ns1, name: s, labels: {kubernetes.io/service-name: svc2}}
      addressType: FQDN
      ports: []
      endpoints: [{addresses: [10.0.0.1], hints: {forZones: [{name: a}, {name: b}], forNodes: [{name: n1}]}}]
  phases:
    - {name: initial}
    - {name: gone, delete_slices: all, services: [{metadata: {namespace: ns1, name: svc2}, spec: {clusterIP: 172.30.0.42, ports: [{port: 81}]}}]}
  cases: [{id: a, from: pod, dst: 1.2.3.4, dport: 80, expect: drop}]
`
	got, err := parse([]byte(short))
	if err != nil {
		t.Fatal(err)
	}
	want, err := parse([]byte(long))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(Expect.equal), cmp.Comparer(func(a, b Case) bool { return a.ID == b.ID && a.to() == b.to() })); diff != "" {
		t.Errorf("group mismatch (-in the API's form +in short):\n%s", diff)
	}
}

// TestUnknownFields checks that a misspelt field of an object is an error in both forms.
func TestUnknownFields(t *testing.T) {
	for _, service := range []string{
		`{name: ns1/svc1, clusterip: 172.30.0.41}`,
		`{name: ns1/svc1, spec: {type: NodePort}, etpp: Local}`,
		`{metadata: {namespace: ns1, name: svc1}, spec: {clusterip: 172.30.0.41}}`,
		`{metadata: {namespace: ns1, name: svc1}, etp: Local}`,
	} {
		text := `groups: [{id: g, services: [` + service + `], cases: [{id: a, from: pod, dst: 1.2.3.4, dport: 80, expect: drop}]}]`
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%s was accepted", service)
		}
	}
}

package explain

import (
	"fmt"
	"strings"
	"testing"

	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

// stuckIP is the address of a Service that the kernel does not take.
const stuckIP = "172.30.0.30"

// obstacle is how a kernel comes to refuse a Service, in one mode.
type obstacle struct {
	service string // the Service's manifests
	mended  string // those of one that the kernel takes; empty: the same
	put     func(*testbed.Testbed)
	take    func(*testbed.Testbed)
	words   string   // of the kernel, or of the mode
	flags   []string // of the question
}

// stuck returns the manifests of a Service, with something more in its spec.
func stuck(spec, protocol string, endpoints ...string) string {
	return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [172.30.0.0/16]}}
---
{apiVersion: v1, kind: Service, metadata: {name: stuck}, spec: {clusterIP: %s, %s ports: [{port: 80, protocol: %s}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: stuck-1, labels: {kubernetes.io/service-name: stuck}}
addressType: IPv4
ports: [{port: 8080, protocol: %s}]
endpoints: [{addresses: [%s], nodeName: test-node}]
`, stuckIP, spec, protocol, protocol, strings.Join(endpoints, `], nodeName: test-node}, {addresses: [`))
}

// obstacles are what the kernel refuses, by mode: more endpoints than a map of
// nf_tables that chooses by client has room for; chains that lead to each other more
// deeply than it allows, below those of an administrator; a virtual server that is
// another program's; and a protocol that the process cannot carry.
func obstacles() map[string]obstacle {
	var many []string
	for i := range 9000 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/200, i%200+1))
	}
	huge := obstacle{
		service: stuck("sessionAffinity: ClientIP,", "TCP", many...),
		mended:  stuck("sessionAffinity: ClientIP,", "TCP", testbed.PodB.String()),
	}
	return map[string]obstacle{
		"nftables": huge,
		"ebpf":     huge,
		"iptables": {
			service: stuck("externalIPs: [1.2.3.5],", "TCP", testbed.PodB.String()), words: "Too many links",
			put:  func(bed *testbed.Testbed) { deepen(bed, 11) },
			take: func(bed *testbed.Testbed) { bed.Run("iptables-nft", "-t", "nat", "-F", "OUTPUT-1") },
		},
		"ipvs": {
			service: stuck("", "TCP", testbed.PodB.String()), words: "belongs to another program",
			put:  func(bed *testbed.Testbed) { bed.Run("ipvsadm", "-A", "-t", stuckIP+":80", "-s", "rr") },
			take: func(bed *testbed.Testbed) { bed.Run("ipvsadm", "-D", "-t", stuckIP+":80") },
		},
		"userspace": {
			service: stuck("", "SCTP", testbed.PodB.String()), mended: stuck("", "TCP", testbed.PodB.String()), words: "cannot serve SCTP",
			flags: []string{"--proto", "sctp"},
		},
	}
}

// deepen has an administrator's chains lead to those of Services, one to the next.
func deepen(bed *testbed.Testbed, levels int) {
	bed.T.Helper()
	script := "*nat\n:KUBE-SERVICES - [0:0]\n"
	for i := range levels {
		script += fmt.Sprintf(":OUTPUT-%d - [0:0]\n", i+1)
	}
	script += "-A OUTPUT -j OUTPUT-1\n"
	for i := range levels - 1 {
		script += fmt.Sprintf("-A OUTPUT-%d -j OUTPUT-%d\n", i+1, i+2)
	}
	script += fmt.Sprintf("-A OUTPUT-%d -j KUBE-SERVICES\nCOMMIT\n", levels)
	bed.Run("sh", "-c", "iptables-nft-restore --noflush <<'END'\n"+script+"END")
}

// TestExplainRefused has the kernel refuse a Service in each mode. Its packets do what
// explain says, those of others go on, and when nothing is in the way it is served.
func TestExplainRefused(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			bed, o := testbed.NewFor(t, mode), obstacles()[mode]
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			if o.put != nil {
				o.put(bed)
			}
			bed.Start(nil)
			bed.AwaitSync()
			bed.Write("stuck.yaml", o.service)
			testbed.Eventually(t, "the refusal", func() bool {
				text, _ := bed.Sluice("explain", "default/stuck")
				return strings.Contains(text, string(statusapi.RefusedByKernel))
			})
			wantExplained(bed, "default/stuck", statusapi.RefusedByKernel, o.flags...)
			if e, _ := explanation(bed, "default/stuck"); !strings.Contains(e.Message, o.words) {
				t.Errorf("%s; want %q in it", e.Message, o.words)
			}
			wantExplained(bed, "default/web", statusapi.Forwarded)
			if o.take != nil {
				o.take(bed)
			}
			if o.mended != "" {
				bed.Write("stuck.yaml", o.mended)
			}
			testbed.Eventually(t, "the Service", func() bool { _, code := bed.Sluice("explain", "default/stuck"); return code == 0 })
			wantExplained(bed, "default/stuck", statusapi.Forwarded)
		})
	}
}

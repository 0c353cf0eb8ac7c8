package daemon

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/version"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/statusapi"
)

// stuckIP is the address of a Service that the kernel does not take.
const stuckIP = "172.30.0.30"

// obstacle is how a kernel comes to refuse a Service, in one mode.
type obstacle struct {
	service string // the Service's manifests
	mended  string // those of one that the kernel takes; empty: the same
	put     func(*site)
	take    func(*site)
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
		mended:  stuck("sessionAffinity: ClientIP,", "TCP", podB.String()),
	}
	return map[string]obstacle{
		"nftables": huge,
		"ebpf":     huge,
		"iptables": {
			service: stuck("externalIPs: [1.2.3.5],", "TCP", podB.String()), words: "Too many links",
			put:  func(s *site) { s.deepen(11) },
			take: func(s *site) { s.run("iptables-nft", "-t", "nat", "-F", "OUTPUT-1") },
		},
		"ipvs": {
			service: stuck("", "TCP", podB.String()), words: "belongs to another program",
			put:  func(s *site) { s.run("ipvsadm", "-A", "-t", stuckIP+":80", "-s", "rr") },
			take: func(s *site) { s.run("ipvsadm", "-D", "-t", stuckIP+":80") },
		},
		"userspace": {
			service: stuck("", "SCTP", podB.String()), mended: stuck("", "TCP", podB.String()), words: "cannot serve SCTP",
			flags: []string{"--proto", "sctp"},
		},
	}
}

// deepen has an administrator's chains lead to those of Services, one to the next.
func (s *site) deepen(levels int) {
	s.t.Helper()
	script := "*nat\n:KUBE-SERVICES - [0:0]\n"
	for i := range levels {
		script += fmt.Sprintf(":OUTPUT-%d - [0:0]\n", i+1)
	}
	script += "-A OUTPUT -j OUTPUT-1\n"
	for i := range levels - 1 {
		script += fmt.Sprintf("-A OUTPUT-%d -j OUTPUT-%d\n", i+1, i+2)
	}
	script += fmt.Sprintf("-A OUTPUT-%d -j KUBE-SERVICES\nCOMMIT\n", levels)
	s.run("sh", "-c", "iptables-nft-restore --noflush <<'END'\n"+script+"END")
}

// explanation asks as scripts do.
func (s *site) explanation(args ...string) (e statusapi.Explanation, code int) {
	s.t.Helper()
	text, code := s.tell(append([]string{"explain", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		s.t.Fatalf("explain %v: exit %d, %s", args, code, text)
	}
	return e, code
}

// TestExplainRefused has the kernel refuse a Service in each mode. Its packets do what
// explain says, those of others go on, and when nothing is in the way it is served.
func TestExplainRefused(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			s, o := newSiteFor(t, mode), obstacles()[mode]
			s.write("web.yaml", service("web", clusterIP, podA))
			if o.put != nil {
				o.put(s)
			}
			s.start(nil)
			s.await()
			s.write("stuck.yaml", o.service)
			eventually(t, "the refusal", func() bool {
				text, _ := s.tell("explain", "default/stuck")
				return strings.Contains(text, string(statusapi.RefusedByKernel))
			})
			s.explained("default/stuck", statusapi.RefusedByKernel, o.flags...)
			if e, _ := s.explanation("default/stuck"); !strings.Contains(e.Message, o.words) {
				t.Errorf("%s; want %q in it", e.Message, o.words)
			}
			s.explained("default/web", statusapi.Forwarded)
			if o.take != nil {
				o.take(s)
			}
			if o.mended != "" {
				s.write("stuck.yaml", o.mended)
			}
			eventually(t, "the Service", func() bool { _, code := s.tell("explain", "default/stuck"); return code == 0 })
			s.explained("default/stuck", statusapi.Forwarded)
		})
	}
}

// TestExplainNotSynced asks a daemon that has not heard of Services, since its API
// server does not answer. Nothing is done to packets yet.
func TestExplainNotSynced(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			s := newSiteFor(t, mode)
			s.write("web.yaml", service("web", clusterIP, podA))
			folder := s.flags[1]
			s.flags[0], s.flags[1] = "--master", "http://127.0.0.1:9"
			d := s.start(nil)
			eventually(t, "an answer", func() bool { _, code := s.tell("explain", clusterIP.String()); return code == 1 })
			e, code := s.explanation(clusterIP.String(), "--from", client.String())
			if code != 1 || e.Reason != statusapi.NotSynced || !strings.Contains(e.Message, "Services are not known yet") {
				t.Errorf("exit %d, %s: %s", code, e.Reason, e.Message)
			}
			s.packetDoes(&e)
			d.end(15)
			s.flags[0], s.flags[1] = "--manifests", folder
			s.start(nil)
			s.await()
			s.explained("default/web", statusapi.Forwarded)
		})
	}
}

// hold has another process own the table of the mode's rules for IPv6, empty: those for
// IPv4 stay in force, and no sync goes through.
func (s *site) hold(table string) (release func()) {
	s.t.Helper()
	cmd := exec.Command("nft", "-i")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = s.lab.Node().Start(cmd)
	}
	if err == nil {
		_, err = fmt.Fprintf(in, "delete table ip6 %s; add table ip6 %s { flags owner; }; add chain ip6 %s foreign\n", table, table, table)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = in.Close(); _ = cmd.Wait() })
	s.t.Cleanup(release)
	holds := func() bool {
		return s.lab.Node().Do(exec.Command("nft", "list", "chain", "ip6", table, "foreign").Run) == nil
	}
	eventually(s.t, "the owner of table "+table, holds)
	return release
}

// since skips what a kernel before a version does not have.
func (s *site) since(first, what string) {
	s.t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		s.t.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	if version.MustParseGeneric(release).LessThan(version.MustParseGeneric(first)) {
		s.t.Skipf("%s from Linux %s on, and this is %s", what, first, release)
	}
}

// block keeps syncs from going through; change is for the daemon.
func (s *site) block(mode string) (change func(*exec.Cmd), begin func() (end func())) {
	s.t.Helper()
	if mode != "iptables" {
		s.since("5.12", "tables have owners")
		table := map[string]string{"nftables": "sluice", "ipvs": "sluice-ipvs", "userspace": "sluice-userspace", "ebpf": "sluice"}[mode]
		return nil, func() func() { return s.hold(table) }
	}
	gate := filepath.Join(s.t.TempDir(), "gate")
	change = s.instead("iptables-nft-restore", "if [ -e "+gate+" ]; then echo the disk is full >&2; exit 4; fi; exec $REAL \"$@\"")
	return change, func() func() {
		if err := os.WriteFile(gate, nil, 0o644); err != nil {
			s.t.Fatal(err)
		}
		return func() { _ = os.Remove(gate) }
	}
}

// TestExplainNotSyncedAnyMore has syncs fail after the first. A Service that comes then
// is not served, and explain says so.
func TestExplainNotSyncedAnyMore(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			s := newSiteFor(t, mode)
			change, begin := s.block(mode)
			s.write("web.yaml", stuck("", "TCP", podA.String()))
			s.start(change)
			s.await()
			s.explained("default/stuck", statusapi.Forwarded)
			end := begin()
			s.write("late.yaml", service("late", secondIP, podB))
			var e statusapi.Explanation
			eventually(t, "the failure", func() bool {
				text, _ := s.tell("explain", "default/late", "--from", client.String(), "--in", lab.Bridge, "-o", "json")
				return json.Unmarshal([]byte(text), &e) == nil && e.Reason == statusapi.NotSynced
			})
			s.packetDoes(&e)
			if _, fate := s.ask(client, netip.MustParseAddrPort(stuckIP+":80")); fate != traffic.Answered {
				t.Errorf("the Service that was there before: %v", fate)
			}
			end()
			eventually(t, "the Service", func() bool { _, code := s.tell("explain", "default/late"); return code == 0 })
			s.explained("default/late", statusapi.Forwarded)
		})
	}
}

package daemon

import (
	"strings"
	"testing"
)

// meddlers change, by mode, what a Service with endpoint 10.0.0.11:8080 has; words are
// what explain says of it. The daemon may be faster, so it is done again and again.
var meddlers = map[string]struct {
	meddle func(*site)
	words  string
}{
	"nftables": {func(s *site) { s.run("nft", "flush map ip sluice endpoints") }, "10.0.0.11 . 8080"},
	"iptables": {func(s *site) { s.run("iptables-nft", "-t", "nat", "-F", "KUBE-SERVICES") }, "-A KUBE-SERVICES -d 172.30.0.10/32"},
	"ipvs": {func(s *site) {
		s.run("sh", "-c", "ipvsadm -d -t 172.30.0.10:80 -r 10.0.0.11:8080 || true")
	}, "-a -t 172.30.0.10:80 -r 10.0.0.11:8080 -m -w 1"},
	"userspace": {func(s *site) { s.run("sh", "-c", "ip rule del priority 10270 || true") }, "ip rule add fwmark"},
	"ebpf": {func(s *site) {
		if err := s.eachEntry("endpoints", deleteEntry); err != nil {
			s.t.Fatal(err)
		}
	}, "10.0.0.11:8080"},
}

// TestExplainDiffers changes the kernel objects of a Service from another process: explain reports
// the difference in every mode, also by its exit code.
func TestExplainDiffers(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			s := newSiteFor(t, mode)
			s.write("web.yaml", service("web", clusterIP, podA))
			s.start(nil)
			s.await()
			if text, code := s.tell("explain", "default/web"); code != 0 || !strings.Contains(text, "agrees") {
				t.Fatalf("exit %d\n%s", code, text)
			}
			words := strings.Join(strings.Fields(meddlers[mode].words), " ")
			eventually(t, "what differs", func() bool {
				meddlers[mode].meddle(s)
				text, code := s.tell("explain", "default/web")
				return code == 1 && strings.Contains(text, "DIFFERS") && strings.Contains(strings.Join(strings.Fields(text), " "), words)
			})
		})
	}
}

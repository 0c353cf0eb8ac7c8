package daemon

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
)

// modes are all of them.
var modes = []string{"nftables", "iptables", "ipvs", "userspace", "ebpf"}

// newSiteFor makes a site and a daemon's flags for a mode. In mode ebpf the sockets of
// all pods are translated.
func newSiteFor(t *testing.T, mode string) *site {
	t.Helper()
	if mode == "ipvs" {
		ipvstest.Require(t)
	}
	places, _ := sockets(t, []string{mode})
	cgroup := ""
	if mode == "ebpf" {
		cgroup = places[1]
	}
	s := newSiteIn(t, lab.Config{Cgroup: cgroup})
	s.flags = append(append(s.flags, places...), "--proxy-mode", mode)
	return s
}

// await waits until the daemon has told the kernel all.
func (s *site) await() {
	s.t.Helper()
	if text, code := s.tell("status", "--wait="+traffic.Scaled(20*time.Second).String()); code != 0 {
		s.t.Fatalf("exit %d, %s", code, text)
	}
}

// explained asks about a packet of the client's and sends it.
func (s *site) explained(to string, reason statusapi.Reason, more ...string) {
	s.t.Helper()
	text, code := s.tell(append([]string{"explain", to, "--from", client.String(), "--in", lab.Bridge, "-o", "json"}, more...)...)
	var e statusapi.Explanation
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		s.t.Errorf("%s: exit %d, %s", to, code, text)
		return
	}
	if e.Reason != reason || code != map[bool]int{true: 0, false: 1}[reason == statusapi.Forwarded] {
		s.t.Errorf("%s: %s, exit %d, want %s\n%s", to, e.Reason, code, reason, text)
	}
	if e.Kernel.State != statusapi.KernelAgrees || e.Kernel.Unread != "" {
		s.t.Errorf("%s: the kernel: %+v", to, e.Kernel)
	}
	s.packetDoes(&e)
}

// packetDoes sends a packet of the client's that was explained.
func (s *site) packetDoes(e *statusapi.Explanation) {
	s.t.Helper()
	to, protocol := e.Packet.To, map[string]proxy.Protocol{"TCP": proxy.TCP, "UDP": proxy.UDP, "SCTP": proxy.SCTP}[e.Packet.Protocol]
	by, fate := s.askBy(protocol, client, netip.MustParseAddrPort(to))
	says := map[string]traffic.Fate{"forward": traffic.Answered, "reject": traffic.Refused, "drop": traffic.Silent, "untouched": traffic.Reset}
	if e.Reason == statusapi.RefusedByKernel && fate != says[e.Verdict] {
		// Mode iptables tries a row again that was refused, and has its rules in one table for a moment.
		by, fate = s.askBy(protocol, client, netip.MustParseAddrPort(to))
	}
	if fate != says[e.Verdict] {
		s.t.Errorf("%s: explained as %s, and the packet saw %v", to, e.Verdict, fate)
	}
	goes := func(c statusapi.Candidate) bool { return strings.HasPrefix(c.Address, by.String()+":") }
	if e.Verdict == "forward" && !slices.ContainsFunc(e.Candidates, goes) {
		s.t.Errorf("%s: explained as %+v, and answered by %v", to, e.Candidates, by)
	}
}

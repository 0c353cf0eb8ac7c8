package explain

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/statusapi"
	"sluice/test/daemon/testbed"
)

// wantExplained asks about a packet of the client's and sends it.
func wantExplained(bed *testbed.Testbed, to string, reason statusapi.Reason, more ...string) {
	bed.T.Helper()
	e, code := explanation(bed, append([]string{to, "--from", testbed.ClientIP.String(), "--in", lab.Bridge}, more...)...)
	if e.Reason != reason || code != map[bool]int{true: 0, false: 1}[reason == statusapi.Forwarded] {
		bed.T.Errorf("%s: %s, exit %d, want %s\n%s", to, e.Reason, code, reason, e.Message)
	}
	if e.Kernel.State != statusapi.KernelAgrees || e.Kernel.Unread != "" {
		bed.T.Errorf("%s: the kernel: %+v", to, e.Kernel)
	}
	wantPacketAsExplained(bed, &e)
}

// wantPacketAsExplained sends a packet of the client's that was explained.
func wantPacketAsExplained(bed *testbed.Testbed, e *statusapi.Explanation) {
	bed.T.Helper()
	to, protocol := e.Packet.To, map[string]proxy.Protocol{"TCP": proxy.TCP, "UDP": proxy.UDP, "SCTP": proxy.SCTP}[e.Packet.Protocol]
	by, fate := bed.AskBy(protocol, testbed.ClientIP, netip.MustParseAddrPort(to))
	says := map[string]traffic.Fate{"forward": traffic.Answered, "reject": traffic.Refused, "drop": traffic.Silent, "untouched": traffic.Reset}
	if e.Reason == statusapi.RefusedByKernel && fate != says[e.Verdict] {
		// Mode iptables tries a row again that was refused, and has its rules in one table for a moment.
		by, fate = bed.AskBy(protocol, testbed.ClientIP, netip.MustParseAddrPort(to))
	}
	if fate != says[e.Verdict] {
		bed.T.Errorf("%s: explained as %s, and the packet saw %v", to, e.Verdict, fate)
	}
	goes := func(c statusapi.Candidate) bool { return strings.HasPrefix(c.Address, by.String()+":") }
	if e.Verdict == "forward" && !slices.ContainsFunc(e.Candidates, goes) {
		bed.T.Errorf("%s: explained as %+v, and answered by %v", to, e.Candidates, by)
	}
}

// explanation asks as scripts do.
func explanation(bed *testbed.Testbed, args ...string) (e statusapi.Explanation, code int) {
	bed.T.Helper()
	text, code := bed.Sluice(append([]string{"explain", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		bed.T.Fatalf("explain %v: exit %d, %s", args, code, text)
	}
	return e, code
}

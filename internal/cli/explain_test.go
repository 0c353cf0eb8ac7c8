package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/statusapi"
)

// TestExplain prints an explanation in which every field is set.
func TestExplain(t *testing.T) {
	now := time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC)
	e := &statusapi.Explanation{
		Packet:  statusapi.ExplainedPacket{Protocol: "TCP", From: "203.0.113.9", To: "192.168.0.2:30080", Interface: "eth0", Origin: "elsewhere", Why: "its address is neither the node's nor within 10.1.0.0/16, the pods'"},
		Service: &statusapi.ExplainedPort{Namespace: "ns", Name: "web", Port: "http", Status: &statusapi.Status{State: statusapi.InForce, Since: new(now.Add(-90 * time.Second))}},
		Frontend: &statusapi.Frontend{
			Kind: "NodePort", Address: "192.168.0.2:30080",
		},
		Verdict: "forward", Reason: statusapi.Forwarded, Message: "It goes to one of 2 endpoints.",
		Scope: "Local", Balancing: "maglev", CandidateCount: 3,
		Candidates: []statusapi.Candidate{
			{Address: "10.1.0.1:8080", Share: 2. / 3, Local: true},
			{Address: "10.1.0.112:8080", Share: 1. / 3, Hairpin: true, Masquerade: true, Reason: "terminating, as none is ready"},
		},
		Masquerade: "externalTrafficPolicy Local keeps it", NotUsedCount: 1,
		NotUsed:  []statusapi.Endpoint{{Address: "10.1.1.1:8080", Reason: "on another node"}},
		Affinity: &statusapi.Affinity{Seconds: 10800, Endpoint: "10.1.0.1:8080"},
		Flows:    &statusapi.OpenFlows{Total: 1, Except: "those that IPVS takes", Items: []statusapi.OpenFlow{{Client: "203.0.113.9:4000", Endpoint: "10.1.1.1:8080", Stale: true}}},
		Kernel: statusapi.KernelCheck{State: statusapi.KernelDiffers, Objects: 7, Differing: 3, Differences: []statusapi.KernelDifference{
			{Object: "element of map endpoints", Want: "10.1.0.1 . 8080"},
		}, Unread: "the virtual servers of IPVS"},
		Notes: []string{"Service ns/xweb claims it too, and has lost it to ns/web, which is a long story to tell"},
		Try:   []string{"kubectl -n ns get endpointslices -l kubernetes.io/service-name=web-with-a-long-name -o yaml", "something else"},
	}
	want := `Packet     TCP from 203.0.113.9 on eth0 to 192.168.0.2:30080
Origin     elsewhere: its address is neither the node's nor within 10.1.0.0/16,
           the pods'
Service    ns/web, port http, NodePort 192.168.0.2:30080
           in force, for 1m30s
Verdict    FORWARD  Forwarded
           It goes to one of 2 endpoints.
Goes to    3 endpoints, by policy Local, chosen by maglev
            66.7%  10.1.0.1:8080    on this node
            33.3%  10.1.0.112:8080  the client itself, masqueraded, terminating,
                                    as none is ready
           and 1 more
Masquerade only to the client itself, which must not see its own address as the
           client's; otherwise no: externalTrafficPolicy Local keeps it
Not used   1 endpoint
           10.1.1.1:8080  on another node
Affinity   clients stay with their endpoint for 3h0m0s; this client stays with
           10.1.0.1:8080
Open flows 1, not counting those that IPVS takes
           203.0.113.9:4000 to 10.1.1.1:8080, which new connections do not go to
Kernel     DIFFERS: 3 of 7 objects read back
           element of map endpoints
           should be: 10.1.0.1 . 8080
           is: not there
           and 2 more
           not read back: the virtual servers of IPVS
Note       Service ns/xweb claims it too, and has lost it to ns/web, which is a
           long story to tell
Try        kubectl -n ns get endpointslices -l kubernetes.io/service-name=web-with-a-long-name -o yaml
           something else
`
	var out bytes.Buffer
	if err := Explain(&out, "text", e, now); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("text mismatch (-want +got):\n%s", diff)
	}
}

// TestExplainTried prints the results of real packets.
func TestExplainTried(t *testing.T) {
	evil := statusapi.TraceStep{Chain: "inet firewall out", Handle: 3, Rule: "tcp dport 80 drop", Verdict: "drop"}
	ours := statusapi.TraceStep{Chain: "ip sluice services", Verdict: "jump x", Ours: true}
	theirs := statusapi.TraceStep{Chain: "inet firewall in", Verdict: "accept"}
	for _, tt := range []struct {
		e    statusapi.Explanation
		want string
	}{
		{statusapi.Explanation{Handshake: &statusapi.Handshake{Seconds: 0.002, Endpoint: "10.0.0.1:80"}}, "Connect    answered by 10.0.0.1:80 after 2ms\n"},
		{statusapi.Explanation{Handshake: &statusapi.Handshake{Seconds: 0.002}}, "Connect    answered after 2ms\n"},
		{statusapi.Explanation{Handshake: &statusapi.Handshake{Seconds: 3, Error: "i/o timeout"}}, "Connect    FAILED after 3s: i/o timeout\n"},
		{
			statusapi.Explanation{Handshake: &statusapi.Handshake{Seconds: 3, Error: "i/o timeout", Endpoint: "10.0.0.1:80"}},
			"Connect    FAILED after 3s: i/o timeout; it was sent to 10.0.0.1:80\n",
		},
		{statusapi.Explanation{Trace: &statusapi.Trace{Steps: []statusapi.TraceStep{ours, theirs}}}, "Trace      no rule dropped the packet, 2 rules decided about it\n" +
			"           rules of other programs that it passed:\n           inet firewall in  accept\n"},
		{
			statusapi.Explanation{Trace: &statusapi.Trace{Steps: []statusapi.TraceStep{ours, evil}, DroppedBy: &evil}},
			"Trace      DROPPED by a rule of another program, in inet firewall out: tcp dport\n           80 drop\n",
		},
		{
			statusapi.Explanation{Trace: &statusapi.Trace{Bypassed: true, Steps: []statusapi.TraceStep{{Chain: "ip early c", Rule: "dnat to 10.0.0.9", Verdict: "accept"}}}},
			"Trace      no rule dropped the packet, 1 rule decided about it\n" +
				"           BYPASSED: no rule of the service proxy that chooses an endpoint saw\n" +
				"           the packet; an earlier rule of another program translated it,\n           accepted it in the same chain, or disabled tracking for it\n" +
				"           rules of other programs that it passed:\n           ip early c  accept  dnat to 10.0.0.9\n",
		},
		{
			statusapi.Explanation{Trace: &statusapi.Trace{Steps: []statusapi.TraceStep{ours}, Endpoint: "10.0.0.1:80"}},
			"Trace      no rule dropped the packet, 1 rule decided about it\n           its endpoint: 10.0.0.1:80\n",
		},
		{statusapi.Explanation{Trace: &statusapi.Trace{Unknown: "no such packet came within 10s"}}, "Trace      no such packet came within 10s\n"},
	} {
		var out bytes.Buffer
		if err := Explain(&out, "text", &tt.e, time.Time{}); err != nil || !strings.HasSuffix(out.String(), "not checked:\n"+tt.want) {
			t.Errorf("error %v\n%s\nwant at its end\n%s", err, out.String(), tt.want)
		}
	}
}

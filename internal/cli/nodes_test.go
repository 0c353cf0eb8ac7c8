package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/statusapi"
)

// nodes returns the answers of n nodes. They are the same except for changes; a node
// with a nil change does not answer.
func nodes(n int, changes map[int]func(*statusapi.Node)) []NodeAnswer[statusapi.Node] {
	var all []NodeAnswer[statusapi.Node]
	for i := range n {
		a := NodeAnswer[statusapi.Node]{Node: fmt.Sprintf("node-%d", i+1)}
		if change, ok := changes[i+1]; ok && change == nil {
			a.Error = "pod kube-system/sluice-x is Pending"
		} else {
			a.Answer = new(node(change))
			a.Answer.Version = "v1.2.3"
		}
		all = append(all, a)
	}
	return all
}

func TestNodes(t *testing.T) {
	iptables := func(n *statusapi.Node) { n.Mode = "iptables" }
	sick := func(n *statusapi.Node) {
		n.Health = statusapi.Health{Reason: "no sync has gone through"}
		n.Sync.Error = "no\x1bspace"
	}
	idle := func(n *statusapi.Node) { n.Counts.Unreachable = 1 }
	const head = "NODE       MODE       STATE         SERVICES   PENDING   REFUSED   PROBLEMS   VERSION\n"
	few := "NODE     MODE       STATE     SERVICES   PENDING   REFUSED   PROBLEMS   VERSION\n"
	tests := []struct {
		name string
		all  []NodeAnswer[statusapi.Node]
		o    StatusOptions
		want string
	}{
		{"few, each", nodes(2, map[int]func(*statusapi.Node){2: iptables}), StatusOptions{}, few +
			"node-1   nftables   InForce   2          0         0         0          v1.2.3\n" +
			"node-2   iptables   InForce   2          0         0         0          v1.2.3\n"},
		{"many, those that differ", nodes(100, map[int]func(*statusapi.Node){50: sick, 70: nil}), StatusOptions{}, head +
			"98 nodes   nftables   InForce       2          0         0         0          v1.2.3\n" +
			"node-50    nftables   SyncFailing   2          0         0         0          v1.2.3\n" +
			"\nNEEDS ATTENTION:\n  node-50: SYNC FAILS: no\ufffdspace\n" +
			"\nNO ANSWER FROM 1 NODE:\n  node-70: pod kube-system/sluice-x is Pending\n"},
		{"the same on all", nodes(3, map[int]func(*statusapi.Node){1: idle, 2: idle, 3: idle}), StatusOptions{}, strings.ReplaceAll(few, "STATE     ", "STATE            ") +
			"node-1   nftables   NeedsAttention   2          0         0         0          v1.2.3\n" +
			"node-2   nftables   NeedsAttention   2          0         0         0          v1.2.3\n" +
			"node-3   nftables   NeedsAttention   2          0         0         0          v1.2.3\n" +
			"\nNEEDS ATTENTION:\n  3 nodes: All in force, but 1 Service cannot be reached\n"},
		{
			"nobody", nodes(1, map[int]func(*statusapi.Node){1: nil}),
			StatusOptions{},
			"\nNO ANSWER FROM 1 NODE:\n  node-1: pod kube-system/sluice-x is Pending\n",
		},
		{"names", nodes(2, nil), StatusOptions{Output: "name"}, "node-1\nnode-2\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			if err := Nodes(&b, tt.all, tt.o); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, b.String()); diff != "" {
				t.Errorf("mismatch (-want +got):\n%s", diff)
			}
		})
	}
	var b strings.Builder
	if err := Nodes(&b, nodes(100, nil), StatusOptions{All: true}); err != nil || strings.Count(b.String(), "\n") != 101 {
		t.Errorf("not all nodes were shown, error %v:\n%s", err, b.String())
	}
}

func services(nodes ...func(*statusapi.Service)) []NodeAnswer[StatusReport] {
	var all []NodeAnswer[StatusReport]
	for i, change := range nodes {
		s := statusapi.Service{
			ServiceSummary: statusapi.ServiceSummary{Namespace: "shop", Name: "cart"},
			Rows: []statusapi.Port{{
				Name: "http", Protocol: "TCP", Family: "IPv4", Internal: "Cluster", External: "Cluster", Total: 2,
				Status:    statusapi.Status{State: statusapi.InForce, Since: new(now.AddDate(0, 0, -i))},
				Frontends: []statusapi.Frontend{{Kind: "ClusterIP", Address: "10.96.0.1:80"}, {Kind: "NodePort", Address: fmt.Sprintf("192.0.2.%d:30080", i)}},
				Endpoints: []statusapi.Endpoint{{Address: "10.244.1.5:80", Used: true, Local: i == 0}, {Address: "10.244.1.6:80", Reason: "NotReady"}},
			}},
		}
		change(&s)
		all = append(all, NodeAnswer[StatusReport]{
			Node: fmt.Sprintf("node-%d", i+1), Answer: &StatusReport{Node: node(nil), Details: []statusapi.Service{s}},
		})
	}
	return all
}

// TestCompareServices checks that what may differ between nodes is not compared, and
// that every other difference is in a line.
func TestCompareServices(t *testing.T) {
	same := func(*statusapi.Service) {}
	all := services(same, func(s *statusapi.Service) {
		s.Rows[0].Status = statusapi.Status{State: statusapi.Refused, Reason: "no space"}
		s.Rows[0].Endpoints = s.Rows[0].Endpoints[1:]
	}, same)
	all = append(all, NodeAnswer[StatusReport]{Node: "node-4", Error: "no Service shop/cart is served here", FromDaemon: true},
		NodeAnswer[StatusReport]{Node: "node-5", Error: "no pod"})
	var b strings.Builder
	if err := CompareServices(&b, all, StatusOptions{}); err != nil {
		t.Fatal(err)
	}
	out := b.String()
	wantHead := "node-1: the same on 2 of 4 nodes\n\n\nService shop/cart\n"
	wantTail := `
DIFFERENT ON 2 NODES:
  node-2: http TCP IPv4: Refused, no space; http TCP IPv4 endpoint 10.244.1.5:80: not there
  node-4: no Service shop/cart is served here; ClusterIP 10.96.0.1:80: not there; http TCP IPv4: not there; and 3 more

NO ANSWER FROM 1 NODE:
  node-5: no pod
`
	if !strings.HasPrefix(out, wantHead) || !strings.HasSuffix(out, wantTail) {
		t.Errorf("got\n%s\nwant it to begin with\n%s\nand to end with\n%s", out, wantHead, wantTail)
	}
	b.Reset()
	if err := CompareServices(&b, services(same, same, same), StatusOptions{}); err != nil || !strings.HasPrefix(b.String(), "node-1: the same on 3 nodes\n") ||
		strings.Contains(b.String(), "DIFFERENT") {
		t.Errorf("error %v, got\n%s", err, b.String())
	}
}

// TestCompareManyEndpoints checks that all endpoints are compared although no page has
// all of them.
func TestCompareManyEndpoints(t *testing.T) {
	report := func(endpoints ...string) *StatusReport {
		page := func(from int, next string) statusapi.Service {
			return statusapi.Service{Rows: []statusapi.Port{{
				Name: "http", Total: len(endpoints), Continue: next,
				Endpoints: []statusapi.Endpoint{{Address: endpoints[from], Used: true}},
			}, {Name: "other"}}}
		}
		answers := map[string]any{statusapi.NodePath: node(nil), "/v1/services/shop/cart?limit=500": page(0, "")}
		if len(endpoints) > 1 {
			answers["/v1/services/shop/cart?limit=500"] = page(0, "1")
			answers["/v1/services/shop/cart?continue=1&limit=500"] = page(1, "")
		}
		r, err := Report(t.Context(), &daemon{answers: answers}, StatusOptions{Services: []string{"shop/cart"}, Endpoints: true})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	all := []NodeAnswer[StatusReport]{
		{Node: "node-1", Answer: report("a", "b")},
		{Node: "node-2", Answer: report("a", "b")},
		{Node: "node-3", Answer: report("a", "c")},
		{Node: "node-4", Answer: report("a")},
	}
	var b strings.Builder
	if err := CompareServices(&b, all, StatusOptions{}); err != nil {
		t.Fatal(err)
	}
	want := `DIFFERENT ON 2 NODES:
  node-3: http   endpoint c: used; http   endpoint b: not there
  node-4: http   endpoints: 1; http   endpoint b: not there
`
	if !strings.HasPrefix(b.String(), "node-1: the same on 2 of 4 nodes\n") || !strings.HasSuffix(b.String(), want) {
		t.Errorf("got\n%s\nwant it to end with\n%s", b.String(), want)
	}
}

// TestCompareManyCandidates checks that nodes with different numbers of candidates
// differ although the listed ones are the same.
func TestCompareManyCandidates(t *testing.T) {
	answer := func(node string, count int) NodeAnswer[statusapi.Explanation] {
		return NodeAnswer[statusapi.Explanation]{Node: node, Answer: &statusapi.Explanation{
			Verdict: "forward", Reason: statusapi.Forwarded, CandidateCount: count, Candidates: []statusapi.Candidate{{Address: "10.244.1.5:80"}},
		}}
	}
	var b strings.Builder
	if err := CompareExplanations(&b, []NodeAnswer[statusapi.Explanation]{answer("node-1", 5000), answer("node-2", 257)}, "text", now); err != nil {
		t.Fatal(err)
	}
	want := `
Compared: the first 1 of 5,000 endpoints, by address

DIFFERENT ON 1 NODE:
  node-2: goes to: 257 endpoints, first 10.244.1.5:80
`
	if !strings.HasSuffix(b.String(), want) {
		t.Errorf("got\n%s\nwant it to end with\n%s", b.String(), want)
	}
}

// TestCompareExplanations checks that the answer of most nodes is shown although the
// first node has another.
func TestCompareExplanations(t *testing.T) {
	answer := func(node string, e statusapi.Explanation) NodeAnswer[statusapi.Explanation] {
		return NodeAnswer[statusapi.Explanation]{Node: node, Answer: &e}
	}
	forward := statusapi.Explanation{
		Verdict: "forward", Reason: statusapi.Forwarded, CandidateCount: 1, Candidates: []statusapi.Candidate{{Address: "10.244.1.5:80", Share: 1}},
	}
	differs := forward
	differs.Kernel.State = statusapi.KernelDiffers
	drop := statusapi.Explanation{Verdict: "drop", Reason: statusapi.NoLocalEndpoint, Message: "no endpoint is here"}
	all := []NodeAnswer[statusapi.Explanation]{answer("node-1", forward), answer("node-2", drop), answer("node-3", drop), answer("node-4", differs)}
	var b strings.Builder
	if err := CompareExplanations(&b, all, "text", now); err != nil {
		t.Fatal(err)
	}
	want := `DIFFERENT ON 2 NODES:
  node-1: forward (Forwarded); goes to: 10.244.1.5:80
  node-4: forward (Forwarded); goes to: 10.244.1.5:80; kernel: differs
`
	if out := b.String(); !strings.HasPrefix(out, "node-2: the same on 2 of 4 nodes\n") || !strings.HasSuffix(out, want) || !strings.Contains(out, "no endpoint is here") {
		t.Errorf("got\n%s\nwant it to end with\n%s", out, want)
	}
}

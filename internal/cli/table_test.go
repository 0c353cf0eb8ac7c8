package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/statusapi"
)

// widest returns answers with the longest names and addresses that there are.
func widest() *daemon {
	long := strings.Repeat("n", 59)
	six := "fd00:1111:2222:3333:4444:5555:6666:777"
	lost := statusapi.Problem{Object: "Service " + long + "-ns/" + long + "-web", Field: "spec.externalIPs[0]", Reason: "lost to Service " + long + "/" + long}
	list := statusapi.ServiceList{Items: []statusapi.ServiceSummary{
		{Namespace: "shop", Name: "cart", Address: "10.96.0.1", Ports: []string{"80/TCP"}, Used: 2, Endpoints: 3, State: statusapi.InForce, Since: now},
		{
			Namespace: long + "-ns", Name: long + "-web", Address: six + "7", Used: 0, Endpoints: 12345, State: statusapi.InForce, Problems: 1,
			Ports: []string{"80:30080/TCP", "443:30443/TCP", "8443:30844/SCTP"}, Since: now.Add(-1000 * 24 * 3600e9),
		},
	}}
	return &daemon{answers: map[string]any{
		statusapi.NodePath: node(func(n *statusapi.Node) {
			n.Name, n.Health = long+".example", statusapi.Health{Reason: "no sync has succeeded for too long, or none at all"}
			n.Sync.Error = "commit 12 operations: " + strings.Repeat("x", 200)
		}),
		statusapi.ServicesPath: list, statusapi.ProblemsPath: statusapi.ProblemList{Total: 1, Items: []statusapi.Problem{lost}},
		"/v1/services/shop/cart": statusapi.Service{ServiceSummary: list.Items[1], Rows: []statusapi.Port{{
			Name: long, Protocol: "SCTP", Family: "IPv6", Internal: "Cluster", External: "Local", Total: 2,
			Frontends: []statusapi.Frontend{{Kind: "LoadBalancerIP", Address: "[" + six + "7]:65535", LostTo: long + "/" + long}},
			AllowFrom: &[]string{six + "7/128", six + "8/128"},
			Endpoints: []statusapi.Endpoint{
				{Address: "[" + six + "1]:65535", Used: true, Local: true},
				{Address: "[" + six + "2]:65535", Reason: "its EndpointSlice names no node for it, so it does not count as local"},
			},
		}}},
	}}
}

// TestStatusFitsTerminal checks that on a terminal no line is wider, that names and
// endpoints are complete nevertheless, and that nothing is cut for programs.
func TestStatusFitsTerminal(t *testing.T) {
	for _, o := range []StatusOptions{{}, {Services: []string{"shop/cart"}}} {
		text := func(columns int) string {
			o.columns = columns
			var b strings.Builder
			if _, err := Status(t.Context(), &b, widest(), o); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		for _, columns := range []int{80, 100} {
			for line := range strings.Lines(text(columns)) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
					t.Errorf("%d columns on a terminal with %d: %s", n, columns, line)
				}
			}
		}
		for _, complete := range []string{strings.Repeat("n", 59) + "-web\n", "[fd00:1111:2222:3333:4444:5555:6666:7772]:65535\n"} {
			if got := text(80); !strings.Contains(got, complete) && (len(o.Services) > 0) == strings.HasPrefix(complete, "[") {
				t.Errorf("%s is cut:\n%s", complete, got)
			}
		}
		text(1) // must not panic
		if whole := text(0); strings.Contains(whole, "…") || !strings.Contains(whole, strings.Repeat("x", 200)) {
			t.Errorf("a program reads\n%s", whole)
		}
	}
}

// TestStackedTable checks how a table that is too wide is written.
func TestStackedTable(t *testing.T) {
	var b strings.Builder
	table := newTable(&b, "NAMESPACE", "NAME", "ADDRESS", "PORTS", "STATE").fit(40, 2)
	table.line("shop", "cart", "10.96.0.1", "80/TCP", "InForce")
	table.line("monitoring", "kube-state-metrics-of-the-long-name", "fd00:10:96::a1b2", "80:30080/TCP,443:30443/TCP", "")
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	want := `NAMESPACE/NAME
  ADDRESS        PORTS           STATE
shop/cart
  10.96.0.1      80/TCP          InForce
monitoring/
kube-state-metrics-of-the-long-name
  fd00:10:96:…   80:30080/TCP…   -
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("table mismatch (-want +got):\n%s", diff)
	}
	b.Reset()
	table = newTable(&b, "ENDPOINT", "USED", "WHY NOT").fit(40, 1)
	table.line("[fd00:1111:2222:3333::1]:8080", "no", "its hints are for other zones, and more")
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	want = `ENDPOINT
  USED   WHY NOT
[fd00:1111:2222:3333::1]:8080
  no     its hints are for other zones,
         and more
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("text mismatch (-want +got):\n%s", diff)
	}
}

// TestFitLines checks that long lines are wrapped, with what follows indented.
func TestFitLines(t *testing.T) {
	got := fitLines("short\n  a problem of an object\n  unbreakable-word-of-an-object\n", 16)
	if want := "short\n  a problem of\n    an object\n  unbreakable-\n    word-of-an-o\n    bject\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

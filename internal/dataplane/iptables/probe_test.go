package iptables

import (
	"os/exec"
	"strings"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// TestNeeded checks hosts whose chain FORWARD accepts everything, and hosts where it does not.
// Needed must not change them.
func TestNeeded(t *testing.T) {
	tests := []struct {
		name  string
		setup []string
		want  string // a part of the reason
	}{
		{"nobody was here", nil, ""},
		{"nobody was here with the legacy variant", []string{"iptables-legacy -P FORWARD ACCEPT"}, ""},
		{"all is accepted", []string{"iptables-nft -A FORWARD -s 10.0.0.0/8 -j DROP"}, ""},
		{"policy", []string{"iptables-nft -P FORWARD DROP"}, "policy DROP of chain FORWARD (iptables-nft)"},
		{"policy, legacy", []string{"iptables-legacy -N DOCKER", "iptables-legacy -A FORWARD -j DOCKER", "iptables-legacy -P FORWARD DROP"}, "policy DROP of chain FORWARD (iptables-legacy)"},
		{"policy of IPv6", []string{"iptables-nft -A FORWARD -j ACCEPT", "ip6tables-nft -P FORWARD DROP"}, "policy DROP of chain FORWARD (ip6tables-nft)"},
		{
			"policy, and rules for some",
			[]string{"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -s 10.244.0.0/16 -j ACCEPT", "iptables-nft -N DOCKER-USER", "iptables-nft -A FORWARD -j DOCKER-USER"},
			"policy DROP",
		},
		{"policy that nothing comes to", []string{"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -m comment --comment all -j ACCEPT"}, ""},
		{
			"last rule",
			[]string{"iptables-nft -A FORWARD -s 10.0.0.0/8 -j ACCEPT", `iptables-nft -A FORWARD -m comment --comment "all \"other\" traffic" -j REJECT --reject-with icmp-host-prohibited`},
			`rule "-j REJECT --reject-with icmp-host-prohibited" of chain FORWARD`,
		},
		{"the variant that the host does not use", []string{"iptables-nft -N KUBE-IPTABLES-HINT", "iptables-legacy -P FORWARD DROP"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lab.Namespace(t)
			for _, line := range tt.setup {
				run(t, line)
			}
			before := host(t)
			got, err := Needed(t.Context(), mode.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(got, tt.want) || (tt.want == "") != (got == "") {
				t.Errorf("needed because %q, want %q", got, tt.want)
			}
			if after := host(t); after != before {
				t.Errorf("Needed changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

// TestNeededOfAFamily checks that a family that is not served is ignored.
func TestNeededOfAFamily(t *testing.T) {
	lab.Namespace(t)
	run(t, "ip6tables-nft -P FORWARD DROP")
	got, err := Needed(t.Context(), mode.Settings{Families: []proxy.Family{proxy.IPv4}})
	if got != "" || err != nil {
		t.Errorf("needed because %q, error %v", got, err)
	}
}

func run(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// host returns the tables that exist, including those that reading a table has created.
func host(t *testing.T) string {
	t.Helper()
	return run(t, "nft list tables; cat /proc/self/net/ip_tables_names /proc/self/net/ip6_tables_names")
}

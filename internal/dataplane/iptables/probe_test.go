package iptables

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// TestNeeds checks hosts whose chains FORWARD and INPUT accept everything, and hosts where they
// do not, with the programs and without. Needs must not change them.
func TestNeeds(t *testing.T) {
	const native = "nft add rule ip filter FORWARD meta mark set ct mark map { 1 : 2 }" // iptables-save cannot list it
	tests := []struct {
		name    string
		setup   []string
		want    string // a part of the reason
		certain bool
	}{
		{"nobody was here", nil, "", false},
		{"nobody was here with the legacy variant", []string{"iptables-legacy -P FORWARD ACCEPT"}, "", false},
		{"all is accepted", []string{"iptables-nft -A FORWARD -j ACCEPT", "iptables-nft -A FORWARD -s 10.0.0.0/8 -j DROP", "iptables-nft -N MINE", "iptables-nft -A MINE -j DROP"}, "", false},
		{"some is dropped", []string{"iptables-nft -A FORWARD -s 10.0.0.0/8 -j DROP"}, "rule 1 of chain FORWARD (iptables-nft)", false},
		{"policy", []string{"iptables-nft -P FORWARD DROP"}, "policy DROP of chain FORWARD (iptables-nft)", true},
		{"policy, legacy", []string{"iptables-legacy -N DOCKER", "iptables-legacy -A FORWARD -j DOCKER", "iptables-legacy -P FORWARD DROP"}, "policy DROP of chain FORWARD (iptables-legacy)", true},
		{"policy of IPv6", []string{"iptables-nft -A FORWARD -j ACCEPT", "ip6tables-nft -P FORWARD DROP"}, "policy DROP of chain FORWARD (ip6tables-nft)", true},
		{
			"policy, and rules for some",
			[]string{"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -s 10.244.0.0/16 -j ACCEPT", "iptables-nft -N DOCKER-USER", "iptables-nft -A FORWARD -j DOCKER-USER"},
			"policy DROP", false,
		},
		{"policy that nothing comes to", []string{"iptables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -m comment --comment all -j ACCEPT"}, "", false},
		{"policy that nothing comes to, legacy", []string{"iptables-legacy -P FORWARD DROP", "iptables-legacy -A FORWARD -m comment --comment all -j ACCEPT"}, "", false},
		{
			"last rule",
			[]string{"iptables-nft -A FORWARD -s 10.0.0.0/8 -j ACCEPT", `iptables-nft -A FORWARD -m comment --comment "all \"other\" traffic" -j REJECT --reject-with icmp-host-prohibited`},
			"rule 2 of chain FORWARD", false,
		},
		{
			"a chain that ends in DROP",
			[]string{"iptables-nft -N MINE", "iptables-nft -A MINE -p icmp -j RETURN", "iptables-nft -A MINE -j DROP", "iptables-nft -A FORWARD -j MINE"},
			"rule 2 of chain MINE, which FORWARD leads to (iptables-nft)", true,
		},
		{
			"a chain that ends in DROP, legacy",
			[]string{"iptables-legacy -N MINE", "iptables-legacy -A MINE -j DROP", "iptables-legacy -A FORWARD -i eth0 -g MINE"},
			"rule 1 of chain MINE, which FORWARD leads to (iptables-legacy)", false,
		},
		{"a chain that all return from", []string{"iptables-nft -N MINE", "iptables-nft -A MINE -j RETURN", "iptables-nft -A MINE -j DROP", "iptables-nft -A FORWARD -j MINE"}, "", false},
		{"an interface", []string{"iptables-nft -A FORWARD -i eth0 -j DROP"}, "rule 1 of chain FORWARD (iptables-nft)", false},
		{"a policy that iptables-save cannot list", []string{"iptables-nft -P FORWARD DROP", native}, "policy DROP of chain FORWARD (iptables-nft)", true},
		{"a verdict map", []string{"iptables-nft -P FORWARD ACCEPT", "nft add rule ip filter FORWARD tcp dport vmap { 80 : drop }"}, "of chain FORWARD (iptables-nft)", false},
		{"INPUT, policy", []string{"iptables-nft -P INPUT DROP", "iptables-nft -A INPUT -p tcp --dport 22 -j ACCEPT"}, "policy DROP of chain INPUT (iptables-nft) drops health checks", false},
		{"INPUT, last rule", []string{"iptables-legacy -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT", "iptables-legacy -A INPUT -j REJECT"}, "rule 2 of chain INPUT (iptables-legacy)", false},
		{"INPUT, banned hosts and invalid packets", []string{
			"iptables-nft -N f2b-sshd", "iptables-nft -A f2b-sshd -s 192.0.2.1 -j REJECT", "iptables-nft -A INPUT -p tcp --dport 22 -j f2b-sshd",
			"iptables-nft -A INPUT -m conntrack --ctstate INVALID -j DROP",
		}, "", false},
		{"rules of kube-proxy and the kubelet", []string{
			"iptables-nft -N KUBE-FORWARD", "iptables-nft -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP", "iptables-nft -A FORWARD -j KUBE-FORWARD",
			"iptables-nft -N KUBE-FIREWALL", "iptables-nft -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP", "iptables-nft -A INPUT -j KUBE-FIREWALL",
		}, "", false},
	}
	for _, tt := range tests {
		for name, path := range map[string]string{"": os.Getenv("PATH"), ", without programs": "/nonexistent"} {
			t.Run(tt.name+name, func(t *testing.T) {
				lab.Namespace(t)
				for _, line := range tt.setup {
					run(t, line)
				}
				before, usual := host(t), os.Getenv("PATH")
				t.Setenv("PATH", path)
				got, err := Needs(mode.Settings{})(t.Context())
				t.Setenv("PATH", usual)
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(got.Why, tt.want) || (tt.want == "") != (got.Why == "") || got.Certain != tt.certain {
					t.Errorf("needed because %+v, want %q, certain %t", got, tt.want, tt.certain)
				}
				if after := host(t); after != before {
					t.Errorf("Needs changed\n%s\nto\n%s", before, after)
				}
			})
		}
	}
}

// TestNeedsOfTheOtherVariant checks that rules of the variant that the host does not use do
// not count: ours would not override them.
func TestNeedsOfTheOtherVariant(t *testing.T) {
	lab.Namespace(t)
	run(t, "iptables-nft -N KUBE-IPTABLES-HINT && iptables-legacy -P FORWARD DROP")
	if got, err := Needs(mode.Settings{})(t.Context()); got.Why != "" || err != nil {
		t.Errorf("needed because %+v, error %v", got, err)
	}
}

// TestNeedsOfAFamily checks that a family that is not served is ignored.
func TestNeedsOfAFamily(t *testing.T) {
	lab.Namespace(t)
	run(t, "ip6tables-nft -P FORWARD DROP")
	if got, err := Needs(mode.Settings{Families: []proxy.Family{proxy.IPv4}})(t.Context()); got.Why != "" || err != nil {
		t.Errorf("needed because %+v, error %v", got, err)
	}
}

// TestNeedsFollowsTheRules looks again when the rules have changed.
func TestNeedsFollowsTheRules(t *testing.T) {
	lab.Namespace(t)
	look := Needs(mode.Settings{})
	for _, tt := range []struct{ line, want string }{
		{"true", ""},
		{"iptables-nft -P FORWARD DROP", "policy DROP of chain FORWARD (iptables-nft)"},
		{"true", "policy DROP of chain FORWARD (iptables-nft)"},
		{"iptables-nft -P FORWARD ACCEPT", ""},
		{"iptables-legacy -P FORWARD ACCEPT && iptables-legacy -t mangle -N KUBE-IPTABLES-HINT", ""},
		{"iptables-legacy -P FORWARD DROP", "policy DROP of chain FORWARD (iptables-legacy)"},
	} {
		run(t, tt.line)
		if got, err := look(t.Context()); !strings.HasPrefix(got.Why, tt.want) || (tt.want == "") != (got.Why == "") || err != nil {
			t.Errorf("after %s: needed because %+v, error %v; want %q", tt.line, got, err, tt.want)
		}
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

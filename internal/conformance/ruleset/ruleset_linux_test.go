package ruleset

import "testing"

// TestTidy keeps all but what nobody can take away from iptables.
func TestTidy(t *testing.T) {
	for _, c := range []struct {
		name     string
		tidy     func(string) string
		in, want string
	}{
		{
			"tables of iptables", normalizeNft,
			"# Warning: table ip nat is managed by iptables-nft, do not touch!\ntable ip nat {\n" +
				"\tchain PREROUTING {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t}\n\n" +
				"\tchain OUTPUT {\n\t\ttype nat hook output priority dstnat; policy accept;\n\t}\n}\n",
			"",
		},
		{
			"a chain of somebody's", normalizeNft,
			"table ip6 filter {\n\tchain THEIRS {\n\t}\n\n" +
				"\tchain INPUT {\n\t\ttype filter hook input priority filter; policy accept;\n\t}\n}\n",
			"table ip6 filter {\n\tchain THEIRS {\n\t}\n}\n",
		},
		{
			"a policy and a rule", normalizeNft,
			"table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n\n" +
				"\tchain OUTPUT {\n\t\ttype filter hook output priority filter; policy accept;\n\t\ttcp dport 99 counter accept\n\t}\n}\n",
			"table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n\n" +
				"\tchain OUTPUT {\n\t\ttype filter hook output priority filter; policy accept;\n\t\ttcp dport 99 counter accept\n\t}\n}\n",
		},
		{
			"tables of others", normalizeNft,
			"table ip theirs {\n\tchain INPUT {\n\t\ttype filter hook input priority 5; policy accept;\n\t}\n}\ntable inet nat {\n}\n",
			"table ip theirs {\n\tchain INPUT {\n\t\ttype filter hook input priority 5; policy accept;\n\t}\n}\ntable inet nat {\n}\n",
		},
		{
			"saved rules", normalizeSave,
			"# Generated\n*filter\n:INPUT ACCEPT [12:34]\n:OUTPUT DROP [0:0]\n:THEIRS - [0:0]\n-A INPUT -j THEIRS\nCOMMIT\n# Completed\n" +
				"*nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\nCOMMIT\n",
			"*filter\n:INPUT ACCEPT\n:OUTPUT DROP\n:THEIRS -\n-A INPUT -j THEIRS\nCOMMIT\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.tidy(c.in); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

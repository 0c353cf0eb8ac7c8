package ipt_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/conformance/lab"
	"sluice/internal/kernel/ipt"
)

// TestReadTable reads rules as the programs, and nft, have written them.
func TestReadTable(t *testing.T) {
	const rules = `*filter
:FORWARD DROP [0:0]
:MINE - [0:0]
-A FORWARD -i eth0 -o eth1 -p tcp -m comment --comment "not \"these\"" -j DROP
-A FORWARD -s ADDR -d ADDR -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW -j REJECT
-A FORWARD -m comment --comment all -j ACCEPT
-A FORWARD -j MINE
-A FORWARD -m mark --mark 0x1/0x1 -g MINE
-A MINE -p udp
-A MINE -j LOG
-A MINE -j RETURN
COMMIT
`
	forward := []string{
		`-i -o -p -m comment --comment "not \"these\"" -j DROP`, "-s -d -p -m tcp -m conntrack -j REJECT",
		`-m comment --comment "all" -j ACCEPT`, "-j MINE", "-m mark -j MINE",
	}
	mine := []string{"-p", "-j LOG", "-j RETURN"}
	for _, f := range ipt.Families() {
		for _, v := range ipt.Variants() {
			t.Run(ipt.Name(f, v), func(t *testing.T) {
				c := openInNamespace(t, f, v)
				if all, err := ipt.Rules(t.Context(), f, v, "filter"); len(all) > 0 || err != nil {
					t.Errorf("an unused table has %v, error %v", all, err)
				}
				addr := map[ipt.Family]string{ipt.IPv4: "10.0.0.0/8", ipt.IPv6: "fd00::/8"}[f]
				if err := c.Restore(t.Context(), []byte(strings.ReplaceAll(rules, "ADDR", addr))); err != nil {
					t.Fatal(err)
				}
				want := map[string][]string{"FORWARD": forward, "MINE": mine}
				if v == ipt.NFT { // it needs no module to compare ports
					want["FORWARD"] = append([]string{forward[0], "-p -s -d -m multiport -m conntrack -j REJECT"}, forward[2:]...)
				}
				wantAbridged(t, f, v, "FORWARD DROP", want)
			})
		}
	}
	t.Run("nft", func(t *testing.T) {
		lab.Namespace(t)
		nft(t, `table ip filter {
	chain MINE { ip saddr 10.0.0.1 reject; iif lo goto OTHER; }
	chain OTHER { }
	chain FORWARD {
		type filter hook forward priority 0; policy accept;
		tcp dport vmap { 22 : drop, 80 : jump MINE }
		ip daddr @few meta l4proto tcp counter log drop
	}
	set few { type ipv4_addr; }
}`)
		wantAbridged(t, ipt.IPv4, ipt.NFT, "FORWARD ACCEPT", map[string][]string{
			"FORWARD": {"-p -m multiport -m set", "-p -m multiport -m set -j DROP", "-p -m multiport -m set -j MINE", "-d -m set -p -j DROP"},
			"MINE":    {"-s -j REJECT", "-i -j OTHER"},
		})
	})
}

func nft(t *testing.T, input string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// wantAbridged compares the rules of chains, and the policy of one.
func wantAbridged(t *testing.T, f ipt.Family, v ipt.Variant, policy string, want map[string][]string) {
	t.Helper()
	all, err := ipt.Rules(t.Context(), f, v, "filter")
	if err != nil {
		t.Fatal(err)
	}
	for name, rules := range want {
		c := all[name]
		if c == nil {
			t.Fatalf("there is no chain %s", name)
		}
		var got []string
		for _, r := range c.Rules {
			got = append(got, r.String())
		}
		if diff := cmp.Diff(rules, got); diff != "" {
			t.Errorf("rules of chain %s (-want +got):\n%s", name, diff)
		}
		if c.Policy != "" && name+" "+c.Policy != policy || c.Policy == "" && strings.HasPrefix(policy, name+" ") {
			t.Errorf("the policy of chain %s is %q", name, c.Policy)
		}
	}
}

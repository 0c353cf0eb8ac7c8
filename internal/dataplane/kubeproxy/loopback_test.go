package kubeproxy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl/sysctltest"
)

const (
	guardRule  = `! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "` + GuardComment + `" -j DROP`
	notedRule  = `! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "` + GuardComment + ", route_localnet is 1 because of this proxy" + `" -j DROP`
	ourFilter  = "*filter\n:KUBE-NODEPORTS - [0:0]\n:KUBE-SERVICES - [0:0]\n-A INPUT -j KUBE-NODEPORTS\n-A OUTPUT -j KUBE-SERVICES\n-A KUBE-NODEPORTS -p tcp -j ACCEPT\nCOMMIT\n"
	ourNAT     = "*nat\n:KUBE-NODEPORTS - [0:0]\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j KUBE-NODEPORTS\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n"
	theirGuard = "*filter\n:KUBE-FIREWALL - [0:0]\n-A KUBE-FIREWALL " + guardRule + "\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n"
)

// TestCleanupClosesLoopback wants the setting to go with the rules that a
// service proxy had for it, and no guard to go while the setting stays.
func TestCleanupClosesLoopback(t *testing.T) {
	add := func(rule string) string { return "*filter\n-A KUBE-NODEPORTS " + rule + "\nCOMMIT\n" }
	readOnly := errors.New("read-only file system")
	tests := []struct {
		name, rules string
		refuse      error
		keep        Keep
		want        string // of the setting
		kept        string // a rule that stays
		fails       bool
	}{
		{name: "ours", rules: ourNAT + ourFilter + add(notedRule), want: "0"},
		{name: "the administrator's", rules: ourNAT + ourFilter + add(guardRule), want: "1"},
		{name: "kube-proxy's", rules: ourNAT + theirGuard, want: "0", kept: "KUBE-FIREWALL " + guardRule},
		{name: "nobody's", rules: theirGuard, want: "1", kept: "KUBE-FIREWALL " + guardRule},
		{name: "ours, which cannot be changed", rules: ourNAT + ourFilter + add(notedRule), refuse: readOnly, want: "1", kept: "KUBE-NODEPORTS " + notedRule, fails: true},
		{name: "kube-proxy's, which cannot be changed", rules: ourNAT + theirGuard, refuse: readOnly, want: "1", kept: "KUBE-FIREWALL " + guardRule},
		{name: "kube-proxy's without a guard", rules: ourNAT, refuse: readOnly, want: "1", fails: true},
		{name: "of a variant that is left for the other", rules: ourNAT + ourFilter + add(notedRule), keep: Keep{Variants: []ipt.Variant{ipt.NFT}, Loopback: true}, want: "1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, programs, _ := fakeHost(t, tt.rules)
			k := sysctltest.NewFake(map[string]string{localnet.Name: "1"})
			if tt.refuse != nil {
				k.Refuse(localnet.Name, tt.refuse)
			}
			h.sysctls = k
			if removed, err := h.cleanup(t.Context(), tt.keep); (err != nil) != tt.fails {
				t.Errorf("error %v, removed %q", err, removed)
			}
			if removed, _ := h.cleanup(t.Context(), tt.keep); len(removed) > 0 {
				t.Errorf("removed %q the second time", removed)
			}
			if got, _ := k.Read(localnet.Name); got != tt.want {
				t.Errorf("the setting is %s, want %s", got, tt.want)
			}
			var rules []string
			tables, err := programs.Save(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, table := range tables {
				for _, c := range table.Chains {
					for _, r := range c.Rules {
						rules = append(rules, c.Name+" "+r)
					}
				}
			}
			if tt.kept == "" && len(rules) > 0 || tt.kept != "" && !slices.Contains(rules, tt.kept) {
				t.Errorf("rules %q stay, want %q", rules, tt.kept)
			}
			chain, _, _ := strings.Cut(tt.kept, " ")
			if tt.kept != "" && !slices.Contains(rules, "INPUT -j "+chain) || len(rules) > 2 {
				t.Errorf("rules %q stay, want the guard and the way to it", rules)
			}
		})
	}
}

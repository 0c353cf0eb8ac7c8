package iptables

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/ipt/ipttest"
	"sluice/internal/kernel/sysctl/sysctltest"
)

// fakeHost returns a fake host with rules in its IPv4 tables of the legacy variant.
func fakeHost(t *testing.T, rules string) (*hostTables, *ipttest.Fake) {
	t.Helper()
	programs := ipttest.NewFake()
	if err := programs.Restore(t.Context(), []byte(rules)); err != nil {
		t.Fatal(err)
	}
	programs.Reset()
	return &hostTables{
		open: func(context.Context, ipt.Family) (ipt.Interface, error) { return programs, nil },
		uses: func(f ipt.Family, v ipt.Variant) (ipt.Uses, error) {
			if f != ipt.IPv4 || v != ipt.Legacy {
				return nil, nil
			}
			tables, err := programs.Save(context.Background())
			return ipt.UsesOf(tables), err
		},
		sysctls: sysctltest.NewFake(map[string]string{localnet.Name: "0"}),
	}, programs
}

const fewRules = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-TLDZHNCMVVVJGXPB - [0:0]
:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.10/32 -j KUBE-SVC-TLDZHNCMVVVJGXPB
COMMIT
`

func TestCleanupDescribesWhatItRemoves(t *testing.T) {
	h, programs := fakeHost(t, fewRules)
	removed, err := h.cleanup(t.Context(), 0, false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"table nat of iptables-legacy: 1 jump; chains KUBE-SERVICES; 2 chains of Services and endpoints"}
	if diff := cmp.Diff(want, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	// The fake makes one of the saves itself, to count uses.
	if diff := cmp.Diff(ipttest.Count{Saves: 2, Restores: 1, Lines: 9, Searched: 1}, programs.Reset()); diff != "" {
		t.Errorf("calls of iptables (-want +got):\n%s", diff)
	}
}

// between calls a function between the save and the removal of rules.
type between struct {
	ipt.Interface
	do func()
}

func (b *between) Restore(ctx context.Context, input []byte) error {
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return b.Interface.Restore(ctx, input)
}

func TestCleanupRetriesAfterForeignChange(t *testing.T) {
	tests := []struct{ name, change, want string }{
		{"a jump more", "*nat\n-I PREROUTING -j KUBE-SERVICES\nCOMMIT\n", "table nat of iptables-legacy: 2 jumps; chains KUBE-SERVICES; 2 chains of Services and endpoints"},
		{"a jump less", "*nat\n-D OUTPUT -j KUBE-SERVICES\nCOMMIT\n", "table nat of iptables-legacy: 0 jumps; chains KUBE-SERVICES; 2 chains of Services and endpoints"},
		{"everything gone", "*nat\n-D OUTPUT -j KUBE-SERVICES\n-F KUBE-SERVICES\n-X KUBE-SERVICES\n-X KUBE-SVC-TLDZHNCMVVVJGXPB\n-X KUBE-SVC-NPX46M4PTMTKRN6Y\nCOMMIT\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, programs := fakeHost(t, fewRules)
			change := func() {
				if err := programs.Restore(t.Context(), []byte(tt.change)); err != nil {
					t.Error(err)
				}
			}
			racing := &between{programs, change}
			h.open = func(context.Context, ipt.Family) (ipt.Interface, error) { return racing, nil }
			removed, err := h.cleanup(t.Context(), 0, false)
			if err != nil || strings.Join(removed, "\n") != tt.want {
				t.Errorf("removed %q, error %v; want %q", removed, err, tt.want)
			}
			if found, err := h.findAll(t.Context(), 0); err != nil || found != nil {
				t.Errorf("left: %+v, error %v", found, err)
			}
		})
	}
}

// refusing refuses every restore of one table, or of all tables.
type refusing struct {
	ipt.Interface
	only  string
	err   error
	tries int
}

func (r *refusing) Restore(ctx context.Context, input []byte) error {
	if !strings.HasPrefix(string(input), r.only) {
		return r.Interface.Restore(ctx, input)
	}
	r.tries++
	return r.err
}

func TestCleanupBoundsRetries(t *testing.T) {
	tests := []struct {
		err   error
		tries int
	}{
		{ipt.ErrLocked, 1},
		{errors.New("line 2 failed"), restoreAttempts},
	}
	for _, tt := range tests {
		h, programs := fakeHost(t, fewRules)
		refused := &refusing{Interface: programs, err: tt.err}
		h.open = func(context.Context, ipt.Family) (ipt.Interface, error) { return refused, nil }
		if _, err := h.cleanup(t.Context(), 0, false); !errors.Is(err, tt.err) || refused.tries != tt.tries {
			t.Errorf("%d tries, error %v; want %d and %v", refused.tries, err, tt.tries, tt.err)
		}
	}
}

func TestCleanupContinuesAfterFailure(t *testing.T) {
	h, programs := fakeHost(t, fewRules+"*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n")
	h.open = func(context.Context, ipt.Family) (ipt.Interface, error) {
		return &refusing{Interface: programs, err: ipt.ErrLocked, only: "*nat"}, nil
	}
	removed, err := h.cleanup(t.Context(), 0, false)
	if diff := cmp.Diff([]string{"table filter of iptables-legacy: 0 jumps; chains KUBE-FORWARD"}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if want := "remove kube-proxy's rules from table nat of iptables-legacy: another program holds the xtables lock"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
}

const (
	guardRule  = `! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "` + guardComment + `" -j DROP`
	notedRule  = `! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "` + guardComment + ", route_localnet is 1 because of this proxy" + `" -j DROP`
	ourFilter  = "*filter\n:KUBE-NODEPORTS - [0:0]\n:KUBE-SERVICES - [0:0]\n-A INPUT -j KUBE-NODEPORTS\n-A OUTPUT -j KUBE-SERVICES\n-A KUBE-NODEPORTS -p tcp -j ACCEPT\nCOMMIT\n"
	ourNAT     = "*nat\n:KUBE-NODEPORTS - [0:0]\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j KUBE-NODEPORTS\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n"
	theirGuard = "*filter\n:KUBE-FIREWALL - [0:0]\n-A KUBE-FIREWALL " + guardRule + "\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n"
)

// TestCleanupClosesLoopback checks that route_localnet is reset if a service proxy set it, and
// that the guard stays if it cannot be reset.
func TestCleanupClosesLoopback(t *testing.T) {
	add := func(rule string) string { return "*filter\n-A KUBE-NODEPORTS " + rule + "\nCOMMIT\n" }
	readOnly := errors.New("read-only file system")
	tests := []struct {
		name, rules string
		refuse      error
		but         ipt.Variant
		keep        bool   // the setting
		want        string // of the setting
		kept        string // a rule that stays
		fails       bool
	}{
		{name: "ours", rules: ourNAT + ourFilter + add(notedRule), want: "0"},
		{name: "the administrator's", rules: ourNAT + ourFilter + add(guardRule), want: "1"},
		{name: "the administrator's, which we never needed", rules: ourNAT + ourFilter + "*nat\n:" + kubeMarkOther + " - [0:0]\nCOMMIT\n", want: "1"},
		{name: "kube-proxy's", rules: ourNAT + theirGuard, want: "0", kept: "KUBE-FIREWALL " + guardRule},
		{name: "nobody's", rules: theirGuard, want: "1", kept: "KUBE-FIREWALL " + guardRule},
		{name: "ours, which cannot be changed", rules: ourNAT + ourFilter + add(notedRule), refuse: readOnly, want: "1", kept: "KUBE-NODEPORTS " + notedRule, fails: true},
		{name: "kube-proxy's, which cannot be changed", rules: ourNAT + theirGuard, refuse: readOnly, want: "1", kept: "KUBE-FIREWALL " + guardRule},
		{name: "kube-proxy's without a guard", rules: ourNAT, refuse: readOnly, want: "1", fails: true},
		{name: "of a variant that is left for the other", rules: ourNAT + ourFilter + add(notedRule), but: ipt.NFT, keep: true, want: "1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, programs := fakeHost(t, tt.rules)
			k := sysctltest.NewFake(map[string]string{localnet.Name: "1"})
			if tt.refuse != nil {
				k.Refuse(localnet.Name, tt.refuse)
			}
			h.sysctls = k
			if removed, err := h.cleanup(t.Context(), tt.but, tt.keep); (err != nil) != tt.fails {
				t.Errorf("error %v, removed %q", err, removed)
			}
			if removed, _ := h.cleanup(t.Context(), tt.but, tt.keep); len(removed) > 0 {
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
				t.Errorf("rules %q stay, want the guard and the jump to it", rules)
			}
		})
	}
}

func TestOwns(t *testing.T) {
	tests := []struct {
		table, chain string
		want         bool
	}{
		{"nat", "KUBE-SERVICES", true},
		{"filter", "KUBE-SERVICES", true},
		{"mangle", "KUBE-SERVICES", false},
		{"raw", "KUBE-PROXY-CANARY", false},
		{"mangle", "KUBE-PROXY-CANARY", true},
		{"nat", "KUBE-SVC-TLDZHNCMVVVJGXPB", true},
		{"filter", "KUBE-SVC-TLDZHNCMVVVJGXPB", false},
		{"nat", "KUBE-SVC-TLDZHNCMVVVJGXP1", false},
		{"nat", "KUBE-SVC-TLDZHNCMVVVJGXPBX", false},
		{"nat", "KUBE-SVC-", false},
		{"nat", "KUBE-NODE-PORT", true},
		{"filter", "KUBE-IPVS-OUT-FILTER", true},
		{"filter", "KUBE-FIREWALL", false},
		{"nat", "KUBE-MARK-DROP", false},
		{"nat", "KUBE-KUBELET-CANARY", false},
	}
	for _, tt := range tests {
		if got := owns(tt.table, tt.chain); got != tt.want {
			t.Errorf("owns(%s, %s) = %t, want %t", tt.table, tt.chain, got, tt.want)
		}
	}
}

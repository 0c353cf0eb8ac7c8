package nft_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/nftables/expr"

	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/nft/nfttest"
)

// rangesRule returns a rule that matches clients outside of the prefixes, which are sorted.
func rangesRule(f nft.Family, prefixes ...string) *nft.Rule {
	var all []netip.Prefix
	for _, p := range prefixes {
		all = append(all, netip.MustParsePrefix(p))
	}
	source := &expr.Payload{DestRegister: nft.Register(0), Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
	if f == nft.IP6 {
		source.Offset, source.Len = 8, 16
	}
	return &nft.Rule{Comment: "outside", Ranges: nft.RangesOf(all), Exprs: []expr.Any{
		source, &expr.Lookup{SourceRegister: nft.Register(0), Invert: true}, &expr.Verdict{Kind: expr.VerdictDrop},
	}}
}

// TestRanges adds rules with ranges, two per batch, and checks that they are listed as they
// were written. Adjacent ranges are joined.
func TestRanges(t *testing.T) {
	for _, test := range []struct {
		family   nft.Family
		prefixes []string
		want     string
	}{
		{nft.IP, []string{"10.0.0.0/8"}, "ip saddr != { 10.0.0.0-10.255.255.255 }"},
		{nft.IP, []string{"10.0.0.1/32", "10.0.0.3/32"}, "ip saddr != { 10.0.0.1, 10.0.0.3 }"},
		{nft.IP, []string{"9.0.0.0/8", "10.0.0.0/8", "11.0.0.0/24", "12.0.0.0/8"}, "ip saddr != { 9.0.0.0-11.0.0.255, 12.0.0.0-12.255.255.255 }"},
		{nft.IP, []string{"0.0.0.0/0"}, "ip saddr != { 0.0.0.0-255.255.255.255 }"},
		{nft.IP, []string{"0.0.0.0/32", "255.255.255.255/32"}, "ip saddr != { 0.0.0.0, 255.255.255.255 }"},
		{nft.IP6, []string{"::/0"}, "ip6 saddr != { ::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff }"},
		{nft.IP6, []string{"2001:db8::/33", "2001:db8:8000::/33", "fd00::1/128"}, "ip6 saddr != { 2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff, fd00::1 }"},
	} {
		t.Run(test.want, func(t *testing.T) {
			for name, conn := range map[string]nft.Interface{"kernel": openInNamespace(t), "fake": nfttest.NewFake()} {
				table, rule := nft.Table{Family: test.family, Name: "ranges"}, rangesRule(test.family, test.prefixes...)
				var b nft.Batch
				b.AddTable(table)
				b.AddChain(table, &nft.Chain{Name: "clients"})
				b.AddRule(table, "clients", rangesRule(test.family, test.prefixes[0]))
				b.AddRule(table, "clients", rule)
				if err := conn.Commit(t.Context(), &b); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				l, err := conn.List(t.Context(), table)
				if err != nil {
					t.Fatal(err)
				}
				if len(l.Chains["clients"]) != 2 || len(l.Sets) > 0 {
					t.Fatalf("%s: rules %q, sets %v; want two and none", name, l.Chains["clients"], l.Sets)
				}
				got := l.Chains["clients"][1]
				text, err := got.Text(table, "clients")
				if want := rule.Listed(test.family); got != want || err != nil || !strings.Contains(text, test.want) {
					t.Errorf("%s: rule %q, %q, error %v; want %q, %q", name, got, text, err, want, test.want)
				}
			}
		})
	}
}

// TestManyRanges adds and deletes rules with very many ranges.
func TestManyRanges(t *testing.T) {
	conn := openInNamespace(t)
	var prefixes []string
	for i := range 20_000 {
		prefixes = append(prefixes, fmt.Sprintf("10.%d.%d.%d/31", i/64/256, i/64%256, i%64*4))
	}
	rule := rangesRule(nft.IP, prefixes...)
	var b nft.Batch
	b.AddTable(testTable)
	b.AddChain(testTable, &nft.Chain{Name: "clients"})
	b.AddRule(testTable, "clients", rule)
	nfttest.Commit(t, conn, &b)
	rules, err := conn.Rules(t.Context(), testTable, "clients")
	if err != nil || len(rules) != 1 || rules[0] != rule.Listed(nft.IP) {
		t.Errorf("%d rules, error %v; want the one that was written", len(rules), err)
	}
	b.Reset()
	b.FlushChain(testTable, "clients")
	nfttest.Commit(t, conn, &b)
}

// TestForeignSet lists rules of other programs with anonymous sets of other types.
func TestForeignSet(t *testing.T) {
	conn := openInNamespace(t)
	var b nft.Batch
	b.AddTable(testTable)
	b.AddChain(testTable, &nft.Chain{Name: "clients"})
	nfttest.Commit(t, conn, &b)
	for _, foreign := range []string{"tcp dport { 80, 443 }", "ip saddr { 10.0.0.1, 10.0.0.5 }"} {
		if out, err := exec.Command("nft", "add rule ip contract clients "+foreign+" accept").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	rules, err := conn.Rules(t.Context(), testTable, "clients")
	if err != nil || len(rules) != 2 {
		t.Fatalf("%d rules, error %v; want two", len(rules), err)
	}
	for _, r := range rules {
		if text, err := r.Text(testTable, "clients"); err == nil {
			t.Errorf("a set of another kind is %q", text)
		}
	}
}

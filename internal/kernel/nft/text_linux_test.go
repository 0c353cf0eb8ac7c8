package nft

import (
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TestTextOfForeignRules checks that Text returns an error for rules with expressions that we
// do not use. That nft reads the text of our rules correctly is tested where they are made.
func TestTextOfForeignRules(t *testing.T) {
	tests := []struct {
		name  string
		exprs []expr.Any
	}{
		{"another expression", []expr.Any{&expr.Counter{}}},
		{"another field", []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 1}}},
		{"another key", []expr.Any{&expr.Meta{Key: expr.MetaKeyOIF, Register: 1}}},
		{"another attribute", []expr.Any{&expr.Numgen{Register: 1, Modulus: 2}, &expr.Immediate{Register: 1, Data: []byte{1}}, &expr.NAT{
			Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegAddrMax: 2,
		}}},
		{"another way back", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH}}},
		{"nothing to compare", []expr.Any{&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: []byte{1}}}},
		{"another comparison", []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: []byte{1}}}},
		{"another translation", []expr.Any{&expr.Immediate{Register: 1, Data: []byte{1, 2}}, &expr.NAT{
			Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegProtoMin: 1, RegProtoMax: 2,
		}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text, err := (&Rule{Exprs: tt.exprs}).Listed(IP).Text(Table{IP, "ours"}, "c")
			if err == nil || !strings.Contains(err.Error(), "print rule of chain c in table ip ours") {
				t.Errorf("text %q, error %v", text, err)
			}
		})
	}
}

// TestTextOfCatchAll prints a catch-all element, which other programs may add.
func TestTextOfCatchAll(t *testing.T) {
	s := &Set{Table: Table{IP, "ours"}, Name: "all", Key: []Type{IPv4Addr}}
	op := Op{Kind: AddElement, Table: s.Table, Set: s}
	if got, want := op.Text(), "add element ip ours all { * }"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
}

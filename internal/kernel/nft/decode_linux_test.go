package nft

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// FuzzDecode decodes input that a kernel would not send.
func FuzzDecode(f *testing.F) {
	table := Table{IP, "fuzz"}
	values := &Set{Table: table, Name: "values", Key: []Type{Port, Mark}, Data: []Type{Mark}, Comment: "a map"}
	verdicts := &Set{Table: table, Name: "verdicts", Key: []Type{Port}, Verdicts: true}
	var w netlink.Builder
	var b Batch
	b.AddTable(table)
	b.AddSet(values)
	b.AddSet(verdicts)
	b.AddChain(table, &Chain{Name: "target"})
	b.AddElement(values, Element{Key: "\x00\x50\x00\x00mark", Data: "data"})
	b.AddElement(verdicts, Element{Key: "\x00\x50\x00\x00", Verdict: Verdict{Code: Goto, Chain: "target"}})
	for _, x := range []expr.Any{
		&expr.Verdict{Kind: expr.VerdictAccept}, &expr.Verdict{Kind: expr.VerdictJump, Chain: "services"},
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: Register(0)},
		&expr.Payload{DestRegister: Register(0), Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: Register(0), Data: []byte("eth0")},
		&expr.Bitwise{SourceRegister: Register(0), DestRegister: Register(0), Len: 4, Mask: []byte{255, 0, 0, 0}, Xor: make([]byte, 4)},
		&expr.Lookup{SourceRegister: Register(0), SetName: "values"},
		&expr.Numgen{Register: Register(0), Modulus: 3}, &expr.Masq{Random: true},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: Register(0), RegProtoMin: Register(1)},
	} {
		b.AddRule(table, "target", &Rule{Comment: "one", Exprs: []expr.Any{x}})
	}
	encode(&w, &b, messageBytes)
	f.Add(w.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		for m := range netlink.Messages(data) {
			a := m.Attrs()
			hookShape(a)
			setShape(a)
			decodeTrace(IP, a)
			rule := decodeRule(a)
			rule.Unreadable(IP6)
			if text, err := rule.Text(table, "target"); err == nil && strings.ContainsAny(text, "\r\n\x00") {
				t.Errorf("rule %+v is %q, more than a line", rule, text)
			}
			for _, v := range a.All() {
				decodeElement(v)
				comment(v)
			}
		}
		(&watcher{tables: []Table{table}, changed: func(string) {}}).read(data)
	})
}

// TestListedRulesDifferByTarget checks that rules with different targets differ.
func TestListedRulesDifferByTarget(t *testing.T) {
	listed := func(chain string) ListedRule {
		r := &Rule{Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}}
		return r.Listed(IP)
	}
	if listed("services") == listed("refuse") {
		t.Errorf("a jump to another chain is listed the same: %q", listed("refuse").Exprs)
	}
}

// BenchmarkEncode writes elements and reads them, without the kernel.
func BenchmarkEncode(b *testing.B) {
	table := Table{IP, "bench"}
	values := &Set{Table: table, Name: "values", Key: []Type{Mark, Mark}, Data: []Type{Mark, Port}}
	var batch Batch
	for i := range 10_000 {
		batch.AddElement(values, Element{Key: string(binary.BigEndian.AppendUint64(nil, uint64(i))), Data: "datadata"})
	}
	var w netlink.Builder
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			encode(&w, &batch, messageBytes)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for m := range netlink.Messages(w.Bytes()) {
				for _, e := range m.Attrs().Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS).All() {
					decodeElement(e)
				}
			}
		}
	})
}

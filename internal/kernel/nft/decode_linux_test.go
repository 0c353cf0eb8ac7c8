package nft

import (
	"encoding/binary"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// FuzzDecode feeds the decoders what a kernel would not send.
func FuzzDecode(f *testing.F) {
	table := Table{IP, "fuzz"}
	values := &Set{Table: table, Name: "values", Key: []Type{Port, Mark}, Data: []Type{Mark}, Comment: "a map"}
	verdicts := &Set{Table: table, Name: "verdicts", Key: []Type{Port}, Verdicts: true}
	var w netlink.Builder
	var b Batch
	b.AddTable(table)
	b.AddSet(values)
	b.AddSet(verdicts)
	b.AddChain(table, &Chain{Name: "target", Comment: "a chain"})
	b.AddElement(values, Element{Key: "\x00\x50\x00\x00mark", Data: "data"})
	b.AddElement(verdicts, Element{Key: "\x00\x50\x00\x00", Verdict: Verdict{Code: Goto, Chain: "target"}})
	b.AddRule(table, "target", &Rule{Comment: "one", Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
	encode(&w, &b, messageBytes)
	f.Add(w.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		for m := range netlink.Messages(data) {
			for _, v := range m.Attrs().All() {
				decodeElement(v)
				comment(v)
			}
		}
		firstChange(data, []Table{table})
	})
}

// TestListedRulesTellTargets tells rules apart that differ in where they lead.
func TestListedRulesTellTargets(t *testing.T) {
	listed := func(chain string) ListedRule {
		r := &Rule{Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}}
		return r.Listed(IP)
	}
	if listed("services") == listed("refuse") {
		t.Errorf("a jump to another chain is listed alike: %q", listed("refuse").Exprs)
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

package nft

import (
	"testing"

	"github.com/google/nftables/expr"

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
			for _, v := range netlink.Attributes(m.Payload()) {
				decodeElement(v)
				comment(v, udataSetComment)
			}
		}
		firstChange(data, []Table{table})
	})
}

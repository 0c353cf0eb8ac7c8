package nft_test

import (
	"testing"

	"sluice/internal/kernel/nft"
)

// manyElements returns the elements that benchmarks write and list.
func manyElements() []nft.Element {
	all := make([]nft.Element, 10_000)
	for i := range all {
		all[i] = nft.Element{Key: word(uint32(i)) + word(0), Data: word(uint32(i)) + "\x00\x50\x00\x00"}
	}
	return all
}

// BenchmarkCommit adds elements to the kernel and deletes them again.
func BenchmarkCommit(b *testing.B) {
	c := openInNamespace(b)
	elements := manyElements()
	var batch nft.Batch
	base(&batch)
	commit := func(change func(*nft.Set, nft.Element)) {
		for _, e := range elements {
			change(values, e)
		}
		if err := c.Commit(b.Context(), &batch); err != nil {
			b.Fatal(err)
		}
		batch.Reset()
	}
	commit(batch.AddElement)
	b.ReportAllocs()
	for b.Loop() {
		commit(batch.DeleteElement)
		commit(batch.AddElement)
	}
}

// BenchmarkElements lists a set.
func BenchmarkElements(b *testing.B) {
	c := openInNamespace(b)
	var batch nft.Batch
	base(&batch)
	for _, e := range manyElements() {
		batch.AddElement(values, e)
	}
	if err := c.Commit(b.Context(), &batch); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Elements(b.Context(), values, func(nft.Element) {}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkListed converts a rule to the form of a listing, as a full comparison does.
func BenchmarkListed(b *testing.B) {
	r := lookupRule("of a chain")
	b.ReportAllocs()
	for b.Loop() {
		r.Listed(nft.IP)
	}
}

package ebpf_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// TestRulesFail checks that programs stop when the rules cannot be written, here because
// another process owns the table for IPv6: a new Service must not be served at sockets only.
func TestRulesFail(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	h.must(h.sync(row("web", proxy.TCP, web, pods[0])))
	if left, err := h.d.LeaseLeft(); left <= 0 || err != nil {
		t.Fatalf("the lease is valid for %v, error %v", left, err)
	}
	err := h.lab.Node().Do(func() error {
		other, err := nft.Open()
		if err != nil {
			return err
		}
		h.cleanup(other.Close)
		var b nft.Batch
		table := nft.Table{Family: unix.NFPROTO_IPV6, Name: "sluice"}
		b.DeleteTable(table)
		b.Ops = append(b.Ops, nft.Op{Kind: nft.AddTable, Table: table, Owned: true})
		return other.Commit(t.Context(), &b)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.sync(row("web", proxy.TCP, web, pods[0]), row("dns", proxy.TCP, dns, pods[1])); err == nil {
		t.Fatal("the rules were written")
	}
	if left, err := h.d.LeaseLeft(); left > 0 || err != nil {
		t.Errorf("the lease is valid for %v, error %v", left, err)
	}
}

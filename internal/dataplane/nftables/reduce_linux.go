package nftables

import (
	"context"
	"fmt"

	"github.com/google/nftables/expr"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// ReduceOverlay leaves of the rules of a mode with sockets only what its open
// connections need, while another mode takes new ones: its program still runs.
func ReduceOverlay(ctx context.Context, o Overlay) error {
	conn, err := nft.Open()
	if err != nil {
		return explain(err)
	}
	defer conn.Close()
	var first, rest nft.Batch // a packet may be between two hooks: what it passed is changed before what it comes to
	for _, f := range proxy.Families {
		t := newTable(f, 0, o)
		t.mark = 0 // it is not known, and none of these packets has it
		listing, err := listIfAny(ctx, conn, t.Table)
		if err != nil {
			return err
		}
		if listing == nil || !complete(listing) {
			continue
		}
		in, out := t.openSocketHooks()
		others := func() *nft.Rule { return t.rule().newFlow().accept().comment("another mode has new ones") }
		in.rules = append(in.rules,
			t.rule().meta(expr.MetaKeyMARK).has(o.Sockets.Mark).jump(services).comment("was sent here before that"),
			t.foreign(), others(), t.datagrams())
		out.rules = append(append(out.rules, others()), t.toProgram()...)
		for name := range listing.Hooks {
			if name != in.Name && name != out.Name {
				rest.FlushChain(t.Table, name)
				rest.DeleteChain(t.Table, name)
			}
		}
		t.rewrite(&first, in, true)
		t.rewrite(&first, out, true)
	}
	for _, b := range []*nft.Batch{&first, &rest} {
		if err := conn.Commit(ctx, b); err != nil {
			return fmt.Errorf("leave open connections to a former daemon: %w", err)
		}
	}
	return nil
}

// complete reports whether a table takes new connections.
func complete(l *nft.Listing) bool {
	_, ok := l.Hooks[firewallPrerouting]
	return ok
}

// Complete reports whether the tables take new connections: no other mode has
// reduced them.
func (d *Dataplane) Complete(ctx context.Context) (bool, error) {
	for _, t := range d.tables {
		listing, err := listIfAny(ctx, d.conn, t.Table)
		if err != nil || listing == nil || !complete(listing) {
			return false, err
		}
	}
	return true, nil
}

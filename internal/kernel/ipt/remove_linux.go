package ipt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Removal is what [Remove] removes from a table of the nft variant.
type Removal struct {
	Table  string
	Rules  map[string][]uint64 // handles, by chain
	Chains []string            // with all their rules
}

// Remove removes rules and chains in one transaction, in the network namespace of the
// calling thread. It runs no program, and also works on tables that the programs cannot
// list. The kernel refuses all of it if a rule is gone, or if a rule that stays refers to
// a chain.
func Remove(ctx context.Context, f Family, r Removal) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := netlink.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer c.Close()
	subjects := encodeRemoval(&c.Builder, f, r)
	if err := c.Send(); err != nil {
		return fmt.Errorf("send %d deletions: %w", len(subjects), err)
	}
	failed, err := c.Answers()
	for number, cause := range failed {
		err = errors.Join(err, fmt.Errorf("%s: %w", subjects[number], cause))
		break // the others say no more
	}
	return err
}

// encodeRemoval writes the messages of a removal: rules before chains that they jump to.
// It returns what each message deletes, by its number.
func encodeRemoval(w *netlink.Builder, f Family, r Removal) (subjects map[uint32]string) {
	const subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
	bound := netlink.Netfilter(0, unix.NFNL_SUBSYS_NFTABLES)
	w.Reset()
	subjects = map[uint32]string{w.Begin(unix.NFNL_MSG_BATCH_BEGIN, 0, bound): "begin"}
	remove := func(kind uint16, what string, chainAttr uint16, chain string) {
		subjects[w.Begin(subsystem|kind, 0, netlink.Netfilter(f, 0))] = "delete " + what + " " + chain
		w.Text(unix.NFTA_CHAIN_TABLE, r.Table)
		w.Text(chainAttr, chain)
	}
	for chain, handles := range r.Rules {
		for _, h := range handles {
			remove(unix.NFT_MSG_DELRULE, "a rule of chain", unix.NFTA_RULE_CHAIN, chain)
			w.Raw(unix.NFTA_RULE_HANDLE, string(binary.BigEndian.AppendUint64(nil, h)))
		}
	}
	for _, chain := range r.Chains {
		remove(unix.NFT_MSG_DELRULE, "the rules of chain", unix.NFTA_RULE_CHAIN, chain)
	}
	for _, chain := range r.Chains {
		remove(unix.NFT_MSG_DELCHAIN, "chain", unix.NFTA_CHAIN_NAME, chain)
	}
	subjects[w.Begin(unix.NFNL_MSG_BATCH_END, 0, bound)] = "commit"
	return subjects
}

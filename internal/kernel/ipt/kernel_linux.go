package ipt

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// askNFTables returns the answers to a question about these names: a table, and a
// chain in it.
func askNFTables(question, flags uint16, f Family, names ...string) ([]netlink.Attrs, error) {
	return netlink.Once(context.Background(), unix.NETLINK_NETFILTER, func(c *netlink.Conn) {
		c.Request(unix.NFNL_SUBSYS_NFTABLES<<8|question, flags, netlink.Netfilter(f, 0), names...)
	})
}

func (c *Conn) Stamp(context.Context) (Stamp, error) {
	if c.variant == Legacy {
		return legacyStamp(c.family)
	}
	answers, err := askNFTables(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, 0)
	if err != nil || len(answers) == 0 {
		return Stamp{}, fmt.Errorf("ask for the generation of nf_tables: %w", cmp.Or(err, errors.New("no answer")))
	}
	return Stamp{Generation: uint32(answers[0].Number(unix.NFTA_GEN_ID))}, nil
}

func (c *Conn) Uses(context.Context) (Uses, error) { return CountUses(c.family, c.variant) }

// CountUses is Uses where there are no programs. It needs no other capability than
// CAP_NET_ADMIN.
func CountUses(f Family, v Variant) (Uses, error) {
	if v == Legacy {
		return legacyUses(f)
	}
	chains, err := askNFTables(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, f)
	if err != nil {
		return nil, fmt.Errorf("list chains of nf_tables: %w", err)
	}
	uses := Uses{}
	for _, c := range chains { // the kernel itself counts the uses of each
		uses.add(c.Text(unix.NFTA_CHAIN_TABLE), c.Text(unix.NFTA_CHAIN_NAME), int(c.Number(unix.NFTA_CHAIN_USE)))
	}
	return uses, nil
}

// Packets finds the comment in the bytes of a rule, where it is as it was given.
func (c *Conn) Packets(_ context.Context, table, chain, comment string) (n uint64, err error) {
	if c.variant == Legacy {
		return legacyPackets(c.family, table, chain, comment)
	}
	rules, err := askNFTables(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, c.family, table, chain)
	if err != nil {
		return 0, fmt.Errorf("list the rules of chain %s in table %s: %w", chain, table, err)
	}
	for _, r := range rules {
		for _, x := range r.Get(unix.NFTA_RULE_EXPRESSIONS).All() {
			if x.Text(unix.NFTA_EXPR_NAME) == "counter" && bytes.Contains(r, []byte(comment)) {
				n += x.Number(unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS)
			}
		}
	}
	return n, nil
}

package ipt

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// askAttempts bounds how often the kernel is asked again because others changed
// the tables meanwhile.
const askAttempts = 5

// askNFTables returns the attributes of each answer to a question, which is about
// these names: a table, and a chain in it.
func askNFTables(question, flags uint16, f Family, names ...string) (answers [][]byte, err error) {
	conn, err := netlink.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	err = netlink.Settled(context.Background(), askAttempts, func() error {
		answers = nil
		conn.Request(unix.NFNL_SUBSYS_NFTABLES<<8|question, flags, netlink.Netfilter(f, 0))
		for i, name := range names {
			conn.Text(uint16(i+1), name)
		}
		return conn.Ask(func(m netlink.Message) { answers = append(answers, slices.Clone(m.Payload())) })
	})
	return answers, err
}

// Stamp asks the kernel.
func (c *Conn) Stamp(context.Context) (Stamp, error) {
	if c.variant == Legacy {
		return legacyStamp(c.family)
	}
	answers, err := askNFTables(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, 0)
	if err != nil || len(answers) == 0 {
		return Stamp{}, fmt.Errorf("ask for the generation of nf_tables: %w", cmp.Or(err, errors.New("no answer")))
	}
	return Stamp{Generation: netlink.Number[uint32](netlink.Attribute(answers[0], unix.NFTA_GEN_ID))}, nil
}

// Uses asks the kernel.
func (c *Conn) Uses(context.Context) (Uses, error) { return CountUses(c.family, c.variant) }

// CountUses is Uses for whoever has no programs. It needs no other capability
// than CAP_NET_ADMIN.
func CountUses(f Family, v Variant) (Uses, error) {
	if v == Legacy {
		return legacyUses(f)
	}
	// The kernel itself keeps the number of uses of each chain.
	chains, err := askNFTables(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, f)
	if err != nil {
		return nil, fmt.Errorf("list chains of nf_tables: %w", err)
	}
	uses := Uses{}
	for _, b := range chains {
		uses.add(netlink.Text(netlink.Attribute(b, unix.NFTA_CHAIN_TABLE)), netlink.Text(netlink.Attribute(b, unix.NFTA_CHAIN_NAME)),
			int(netlink.Number[uint32](netlink.Attribute(b, unix.NFTA_CHAIN_USE))))
	}
	return uses, nil
}

// Packets asks the kernel. A comment is in a rule as it is.
func (c *Conn) Packets(_ context.Context, table, chain, comment string) (n uint64, err error) {
	if c.variant == Legacy {
		return legacyPackets(c.family, table, chain, comment)
	}
	rules, err := askNFTables(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, c.family, table, chain)
	if err != nil {
		return 0, fmt.Errorf("list the rules of chain %s in table %s: %w", chain, table, err)
	}
	for _, b := range rules {
		for _, x := range netlink.Attributes(netlink.Attribute(b, unix.NFTA_RULE_EXPRESSIONS)) {
			if netlink.Text(netlink.Attribute(x, unix.NFTA_EXPR_NAME)) == "counter" && bytes.Contains(b, []byte(comment)) {
				n += netlink.Number[uint64](netlink.Attribute(x, unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS))
			}
		}
	}
	return n, nil
}

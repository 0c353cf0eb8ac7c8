package ipt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Uses asks the kernel.
func (c *Conn) Uses(context.Context) (Uses, error) { return CountUses(c.family, c.variant) }

// CountUses is Uses for whoever has no programs. It needs no other capability
// than CAP_NET_ADMIN.
func CountUses(f Family, v Variant) (Uses, error) {
	if v == NFT {
		return nftUses(f)
	}
	return legacyUses(f)
}

// nftUses lists the chains of a family, whose number of uses the kernel keeps;
// none if the kernel has no nf_tables.
func nftUses(f Family) (Uses, error) {
	const tableAttribute, nameAttribute, useAttribute = 1, 3, 6
	chains, err := askNFTables(unix.NFT_MSG_GETCHAIN, f.domain(), netlink.Request|netlink.Dump)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return Uses{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list chains of nf_tables: %w", err)
	}
	uses := Uses{}
	for _, attributes := range chains {
		var table, name string
		var use uint32
		for _, a := range attributes {
			switch {
			case a.Type == tableAttribute:
				table = unix.ByteSliceToString(a.Data)
			case a.Type == nameAttribute:
				name = unix.ByteSliceToString(a.Data)
			case a.Type == useAttribute && len(a.Data) == 4:
				use = binary.BigEndian.Uint32(a.Data)
			}
		}
		uses.add(table, name, int(use))
	}
	return uses, nil
}

// UsesOf counts what was saved.
func UsesOf(tables []Table) Uses {
	uses := Uses{}
	for _, t := range tables {
		for _, c := range t.Chains {
			uses.add(t.Name, c.Name, len(c.Rules))
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				if to := Target(r); to != "" {
					if _, ok := uses[t.Name][to]; ok {
						uses[t.Name][to]++
					}
				}
			}
		}
	}
	return uses
}

func (u Uses) add(table, chain string, n int) {
	if u[table] == nil {
		u[table] = map[string]int{}
	}
	u[table][chain] += n
}

// legacyUses reads the tables that are in use.
func legacyUses(f Family) (Uses, error) {
	names, err := LegacyTables(f)
	if err != nil {
		return nil, err
	}
	uses := Uses{}
	for _, name := range names {
		if err := settled(f, name, func(t *legacyTable) error { return t.count(uses) }); err != nil {
			return nil, fmt.Errorf("read table %s of %s: %w", name, Name(f, Legacy), err)
		}
	}
	return uses, nil
}

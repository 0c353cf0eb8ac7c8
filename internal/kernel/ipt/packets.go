package ipt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Packets asks the kernel.
func (c *Conn) Packets(_ context.Context, table, chain, comment string) (n uint64, err error) {
	if c.variant == NFT {
		n, err = nftPackets(c.family, table, chain, comment)
	} else {
		n, err = legacyPackets(c.family, table, chain, comment)
	}
	if err != nil {
		return 0, fmt.Errorf("count packets of %q in chain %s of table %s: %w", comment, chain, table, err)
	}
	return n, nil
}

// nftPackets lists the rules of a chain. A comment is in a rule as it is.
func nftPackets(f Family, table, chain, comment string) (n uint64, err error) {
	rules, err := askNFTables(unix.NFT_MSG_GETRULE, f.domain(), netlink.Request|netlink.Dump,
		netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(table), 0)},
		netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(chain), 0)})
	if err != nil {
		return 0, err
	}
	for _, attributes := range rules {
		of := func(kind uint16) []byte {
			i := slices.IndexFunc(attributes, func(a netlink.Attribute) bool { return a.Type == kind })
			if i < 0 {
				return nil
			}
			return attributes[i].Data
		}
		expressions := of(unix.NFTA_RULE_EXPRESSIONS)
		if !bytes.Contains(expressions, []byte(comment)) && !bytes.Contains(of(unix.NFTA_RULE_USERDATA), []byte(comment)) {
			continue
		}
		counted, err := counterOf(expressions)
		if err != nil {
			return 0, err
		}
		n += counted
	}
	return n, nil
}

// counterOf finds the packets of the counter among a rule's expressions.
func counterOf(expressions []byte) (n uint64, err error) {
	list, err := netlink.NewAttributeDecoder(expressions)
	if err != nil {
		return 0, err
	}
	list.ByteOrder = binary.BigEndian
	for list.Next() {
		list.Nested(func(expression *netlink.AttributeDecoder) error {
			counter := false
			for expression.Next() {
				switch expression.Type() {
				case unix.NFTA_EXPR_NAME:
					counter = expression.String() == "counter"
				case unix.NFTA_EXPR_DATA:
					expression.Nested(func(data *netlink.AttributeDecoder) error {
						for data.Next() {
							if counter && data.Type() == unix.NFTA_COUNTER_PACKETS {
								n = data.Uint64()
							}
						}
						return nil
					})
				}
			}
			return nil
		})
	}
	return n, list.Err()
}

// legacyPackets reads the table, if it is in use.
func legacyPackets(f Family, table, chain, comment string) (n uint64, err error) {
	names, err := LegacyTables(f)
	if err != nil || !slices.Contains(names, table) {
		return 0, err
	}
	err = settled(f, table, func(t *legacyTable) error {
		n = 0
		_, err := t.walk(func(of string, e legacyEntry) {
			if of == chain && bytes.Contains(t.entries[e.at:e.next], []byte(comment)) {
				n += e.packets
			}
		})
		return err
	})
	return n, err
}

// settled reads a table, again if somebody changes it meanwhile.
func settled(f Family, table string, use func(*legacyTable) error) error {
	const attempts = 5
	for i := range attempts {
		t, err := readLegacy(f, table)
		if errors.Is(err, unix.EAGAIN) && i < attempts-1 {
			continue
		}
		if err == nil {
			err = use(t)
		}
		return err
	}
	return nil
}

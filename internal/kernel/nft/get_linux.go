package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// Element returns the element of a set that has a key, of which only that
// counts; false if there is none.
func (c *Conn) Element(ctx context.Context, s *Set, key Element) (e Element, found bool, err error) {
	err = c.settled(ctx, fmt.Sprintf("get an element of %v %s", s.Table, s.Name), func() error {
		found = false
		c.nl.Request(subsystem|unix.NFT_MSG_GETSETELEM, unix.NLM_F_ACK, netlink.Netfilter(s.Table.Family, 0), s.Table.Name, s.Name)
		c.nl.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
			c.nl.Nest(unix.NFTA_LIST_ELEM, func() { encodeElement(&c.nl.Builder, &Element{Key: key.Key, KeyEnd: key.KeyEnd}) })
		})
		return c.nl.Ask(func(m netlink.Message) {
			for _, a := range m.Attrs().Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS).All() {
				e, found = decodeElement(a), true
			}
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return Element{}, false, nil
	}
	return e, found, err
}

// Rules returns the rules of a chain; none if there is no such chain.
func (c *Conn) Rules(ctx context.Context, t Table, chain string) (rules []ListedRule, err error) {
	err = c.settled(ctx, fmt.Sprintf("list chain %s of %v", chain, t), func() error {
		rules = nil
		return c.ask(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, t.Family, func(a netlink.Attrs) {
			if a.Text(tableAttribute) == t.Name && a.Text(unix.NFTA_RULE_CHAIN) == chain {
				rules = append(rules, decodeRule(a))
			}
		}, t.Name, chain)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return rules, err
}

package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// listAttempts bounds how often a listing is begun again because others kept
// changing the ruleset meanwhile.
const listAttempts = 20

// List returns the chains and sets of a table.
func (c *Conn) List(ctx context.Context, t Table) (*Listing, error) {
	var l *Listing
	err := c.settled(ctx, func() error {
		l = NewListing()
		return c.list(t, l)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %v: %w", t, err)
	}
	return l, nil
}

// NewListing returns a listing of nothing.
func NewListing() *Listing {
	return &Listing{
		Chains: map[string][]ListedRule{}, Sets: map[string]string{}, Hooks: map[string]string{}, Types: map[string]string{},
	}
}

func (c *Conn) list(t Table, l *Listing) error {
	for _, part := range []struct {
		kind, flags uint16
		read        func(b []byte)
	}{
		// Dumps of chains and sets are silent about a missing table; this is not.
		{unix.NFT_MSG_GETTABLE, unix.NLM_F_ACK, func(b []byte) {
			l.Dormant = number(b, unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		}},
		{unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, l.addChain},
		{unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, func(b []byte) {
			chain := text(b, unix.NFTA_RULE_CHAIN)
			l.Chains[chain] = append(l.Chains[chain], decodeRule(b))
		}},
		{unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, l.addSet},
	} {
		c.request(part.kind, part.flags, t)
		err := c.nl.Ask(func(m netlink.Message) {
			// Old kernels dump all tables whatever was asked for.
			if b := m.Payload(); text(b, tableAttribute) == t.Name {
				part.read(b)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *Listing) addChain(b []byte) {
	name := text(b, unix.NFTA_CHAIN_NAME)
	l.Chains[name] = nil
	if hook := netlink.Attribute(b, unix.NFTA_CHAIN_HOOK); hook != nil {
		l.Hooks[name] = hookShape(text(b, unix.NFTA_CHAIN_TYPE), number(hook, unix.NFTA_HOOK_HOOKNUM),
			int32(number(hook, unix.NFTA_HOOK_PRIORITY)), number(b, unix.NFTA_CHAIN_POLICY))
	}
}

func (l *Listing) addSet(b []byte) {
	name := text(b, unix.NFTA_SET_NAME)
	l.Sets[name] = comment(netlink.Attribute(b, unix.NFTA_SET_USERDATA), udataSetComment)
	l.Types[name] = setShape(number(b, unix.NFTA_SET_FLAGS), number(b, unix.NFTA_SET_KEY_TYPE),
		number(b, unix.NFTA_SET_KEY_LEN), number(b, unix.NFTA_SET_DATA_TYPE), number(b, unix.NFTA_SET_DATA_LEN))
}

// Elements lists a set's elements.
func (c *Conn) Elements(ctx context.Context, s *Set, f func(Element)) error {
	var found []Element
	err := c.settled(ctx, func() error {
		found = found[:0]
		return c.elements(s, func(b []byte) { found = append(found, decodeElement(b)) })
	})
	if err != nil {
		return fmt.Errorf("list elements of %v %s: %w", s.Table, s.Name, err)
	}
	for _, e := range found {
		f(e)
	}
	return nil
}

func (c *Conn) elements(s *Set, f func(element []byte)) error {
	c.request(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, s.Table)
	c.nl.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	return c.nl.Ask(func(m netlink.Message) {
		for _, e := range netlink.Attributes(netlink.Attribute(m.Payload(), unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			f(e)
		}
	})
}

// Count returns how many elements a set has. Linux tells it since 6.17; before,
// they are listed.
func (c *Conn) Count(ctx context.Context, s *Set) (n int, err error) {
	err = c.settled(ctx, func() error {
		var told []byte
		c.request(unix.NFT_MSG_GETSET, unix.NLM_F_ACK, s.Table)
		c.nl.Text(unix.NFTA_SET_NAME, s.Name)
		err := c.nl.Ask(func(m netlink.Message) { told = append(told, netlink.Attribute(m.Payload(), setCount)...) })
		if n = int(netlink.Number[uint32](told)); err != nil || told != nil {
			return err
		}
		return c.elements(s, func([]byte) { n++ })
	})
	if err != nil {
		return 0, fmt.Errorf("count elements of %v %s: %w", s.Table, s.Name, err)
	}
	return n, nil
}

// settled runs a listing again while it is interrupted by changes.
func (c *Conn) settled(ctx context.Context, list func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begin()
	return netlink.Settled(ctx, listAttempts, list)
}

package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// errInterrupted says that the tables changed while they were listed.
var errInterrupted = errors.New("listing was interrupted by a change")

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
	// Dumps of chains and sets are silent about a missing table; this is not.
	err := c.request(unix.NFT_MSG_GETTABLE, 0, t, unix.NFTA_TABLE_NAME, func(m message) {
		l.Dormant = number(attribute(m.payload(), unix.NFTA_TABLE_FLAGS))&unix.NFT_TABLE_F_DORMANT != 0
	})
	if err != nil {
		return err
	}
	err = c.request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, t, unix.NFTA_CHAIN_TABLE, func(m message) {
		b := m.payload()
		if text(attribute(b, unix.NFTA_CHAIN_TABLE)) != t.Name {
			return
		}
		name := text(attribute(b, unix.NFTA_CHAIN_NAME))
		l.Chains[name] = nil
		if hook := attribute(b, unix.NFTA_CHAIN_HOOK); hook != nil {
			l.Hooks[name] = hookShape(text(attribute(b, unix.NFTA_CHAIN_TYPE)),
				number(attribute(hook, unix.NFTA_HOOK_HOOKNUM)), int32(number(attribute(hook, unix.NFTA_HOOK_PRIORITY))),
				number(attribute(b, unix.NFTA_CHAIN_POLICY)))
		}
	})
	if err != nil {
		return err
	}
	err = c.request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, t, unix.NFTA_RULE_TABLE, func(m message) {
		b := m.payload()
		if text(attribute(b, unix.NFTA_RULE_TABLE)) != t.Name {
			return
		}
		chain := text(attribute(b, unix.NFTA_RULE_CHAIN))
		l.Chains[chain] = append(l.Chains[chain], decodeRule(b))
	})
	if err != nil {
		return err
	}
	return c.request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, t, unix.NFTA_SET_TABLE, func(m message) {
		b := m.payload()
		if text(attribute(b, unix.NFTA_SET_TABLE)) != t.Name {
			return
		}
		name := text(attribute(b, unix.NFTA_SET_NAME))
		l.Sets[name] = comment(attribute(b, unix.NFTA_SET_USERDATA), udataSetComment)
		l.Types[name] = setShape(number(attribute(b, unix.NFTA_SET_FLAGS)),
			number(attribute(b, unix.NFTA_SET_KEY_TYPE)), number(attribute(b, unix.NFTA_SET_KEY_LEN)),
			number(attribute(b, unix.NFTA_SET_DATA_TYPE)), number(attribute(b, unix.NFTA_SET_DATA_LEN)))
	})
}

// Elements lists a set's elements.
func (c *Conn) Elements(ctx context.Context, s *Set, f func(Element)) error {
	var found []Element
	err := c.settled(ctx, func() error {
		found = found[:0]
		return c.elements(s, func(e Element) { found = append(found, e) })
	})
	if err != nil {
		return fmt.Errorf("list elements of %v %s: %w", s.Table, s.Name, err)
	}
	for _, e := range found {
		f(e)
	}
	return nil
}

func (c *Conn) elements(s *Set, f func(Element)) error {
	e := &c.enc
	e.reset()
	e.begin(subsystem|unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, s.Table.Family, 0)
	e.str(unix.NFTA_SET_ELEM_LIST_TABLE, s.Table.Name)
	e.str(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
	e.end()
	return c.exchange(func(m message) {
		for _, el := range attributes(attribute(m.payload(), unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			f(decodeElement(el))
		}
	})
}

// Count returns how many elements a set has. Linux tells it since 6.17; before,
// they are listed.
func (c *Conn) Count(ctx context.Context, s *Set) (n int, err error) {
	told := false
	err = c.settled(ctx, func() error {
		e := &c.enc
		e.reset()
		e.begin(subsystem|unix.NFT_MSG_GETSET, unix.NLM_F_ACK, s.Table.Family, 0)
		e.str(unix.NFTA_SET_TABLE, s.Table.Name)
		e.str(unix.NFTA_SET_NAME, s.Name)
		e.end()
		return c.exchange(func(m message) {
			if count := attribute(m.payload(), setCount); count != nil {
				n, told = int(number(count)), true
			}
		})
	})
	if err == nil && !told {
		err = c.settled(ctx, func() error {
			n = 0
			return c.elements(s, func(Element) { n++ })
		})
	}
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
	var err error
	for range listAttempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err = list(); !errors.Is(err, errInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}

// request asks for what is in a table.
func (c *Conn) request(kind, flags uint16, t Table, nameKind uint16, f func(message)) error {
	e := &c.enc
	e.reset()
	if flags == 0 {
		flags = unix.NLM_F_ACK
	}
	e.begin(subsystem|kind, flags, t.Family, 0)
	e.str(nameKind, t.Name)
	e.end()
	return c.exchange(f)
}

// exchange sends the request in the buffer and reads its answer to the end.
func (c *Conn) exchange(f func(message)) error {
	if err := unix.Sendto(c.fd, c.enc.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	interrupted := false
	for {
		n, _, err := unix.Recvfrom(c.fd, c.recv, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for m := range messages(c.recv[:n]) {
			if m.seq != c.enc.seq {
				continue // an answer to an earlier request that was given up
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			if m.kind == unix.NLMSG_DONE || m.kind == unix.NLMSG_ERROR {
				return answer(m, interrupted)
			}
			f(m)
		}
	}
}

// answer reads the code at the end of an exchange.
func answer(m message, interrupted bool) error {
	if len(m.body) >= 4 {
		if code := int32(binary.NativeEndian.Uint32(m.body)); code != 0 {
			return syscall.Errno(-code)
		}
	}
	if interrupted {
		return errInterrupted
	}
	return nil
}

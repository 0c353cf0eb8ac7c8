package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// List implements [Interface].
func (c *Conn) List(ctx context.Context, t Table) (l *Listing, err error) {
	err = c.retryInterrupted(ctx, "list "+t.String(), func() error {
		l = NewListing()
		return c.list(t, l)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return l, err
}

// NewListing returns the listing of an empty table.
func NewListing() *Listing {
	return &Listing{Chains: map[string][]ListedRule{}, Hooks: map[string]string{}, Sets: map[string]string{}}
}

func (c *Conn) list(t Table, l *Listing) error {
	bound := map[string]bool{} // anonymous chains: they are added and deleted with the rule that uses them
	for _, part := range []struct {
		kind, flags uint16
		read        func(netlink.Attrs)
	}{
		// Dumps of chains and sets of a missing table are empty; this request is an error.
		{unix.NFT_MSG_GETTABLE, unix.NLM_F_ACK, func(a netlink.Attrs) {
			l.Dormant = a.Number(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		}},
		{unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, func(a netlink.Attrs) {
			name := a.Text(unix.NFTA_CHAIN_NAME)
			if bound[name] = a.Number(chainFlags)&chainBinding != 0; bound[name] {
				return
			}
			l.Chains[name] = nil
			if a.Get(unix.NFTA_CHAIN_HOOK) != nil {
				l.Hooks[name] = hookShape(a)
			}
		}},
		{unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, func(a netlink.Attrs) {
			if chain := a.Text(unix.NFTA_RULE_CHAIN); !bound[chain] {
				l.Chains[chain] = append(l.Chains[chain], decodeRule(a))
			}
		}},
		{unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, func(a netlink.Attrs) {
			if a.Number(unix.NFTA_SET_FLAGS)&unix.NFT_SET_ANONYMOUS == 0 { // anonymous sets are part of a rule
				l.Sets[a.Text(unix.NFTA_SET_NAME)] = setShape(a)
			}
		}},
	} {
		err := c.ask(part.kind, part.flags, t.Family, func(a netlink.Attrs) {
			// Old kernels ignore the table in the request and dump all tables.
			if a.Text(tableAttribute) == t.Name {
				part.read(a)
			}
		}, t.Name)
		if err != nil {
			return err
		}
	}
	for _, rules := range l.Chains {
		if err := c.readRanges(t, rules); err != nil {
			return err
		}
	}
	return nil
}

// readRanges replaces the name of an anonymous set, which decodeRule stores in Ranges, by
// the ranges in the set.
func (c *Conn) readRanges(t Table, rules []ListedRule) error {
	for i := range rules {
		r := &rules[i]
		if r.Ranges == "" {
			continue
		}
		var bounds []bound
		err := c.elements(&Set{Table: t, Name: string(r.Ranges)}, func(a netlink.Attrs) {
			bounds = append(bounds, bound{decodeElement(a).Key, a.Number(unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0})
		})
		switch {
		case errors.Is(err, unix.ENOENT):
			return netlink.ErrInterrupted // the rule was deleted meanwhile
		case err != nil:
			return err
		}
		r.Ranges = rangesFromBounds(t.Family, bounds)
	}
	return nil
}

// Elements implements [Interface].
func (c *Conn) Elements(ctx context.Context, s *Set, f func(Element)) error {
	var found []Element
	err := c.retryInterrupted(ctx, fmt.Sprintf("list elements of %v %s", s.Table, s.Name), func() error {
		found = found[:0]
		if err := c.elements(s, func(a netlink.Attrs) { found = append(found, decodeElement(a)) }); err != nil {
			return err
		}
		return checkNoDuplicates(found)
	})
	if err != nil {
		return err
	}
	for _, e := range found {
		f(e)
	}
	return nil
}

// checkNoDuplicates returns [netlink.ErrInterrupted] if an element is listed twice. The
// kernel resizes the hash table of a set concurrently. If that happens between two parts of
// a dump, the kernel does not report it, and the later parts repeat some elements and omit
// as many.
func checkNoDuplicates(all []Element) error {
	keys := make(map[string]bool, len(all))
	for _, e := range all {
		keys[e.Key] = true
	}
	if len(keys) < len(all) {
		return netlink.ErrInterrupted
	}
	return nil
}

func (c *Conn) elements(s *Set, f func(element netlink.Attrs)) error {
	return c.ask(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, s.Table.Family, func(a netlink.Attrs) {
		for _, e := range a.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS).All() {
			f(e)
		}
	}, s.Table.Name, s.Name)
}

// Count returns the number of elements of a set. The kernel reports it since Linux 6.17;
// on older ones the elements are listed.
func (c *Conn) Count(ctx context.Context, s *Set) (n int, err error) {
	err = c.retryInterrupted(ctx, fmt.Sprintf("count elements of %v %s", s.Table, s.Name), func() error {
		reported := false
		err := c.ask(unix.NFT_MSG_GETSET, unix.NLM_F_ACK, s.Table.Family, func(a netlink.Attrs) {
			reported, n = a.Get(setCount) != nil, int(a.Number(setCount))
		}, s.Table.Name, s.Name)
		if err != nil || reported {
			return err
		}
		return c.elements(s, func(netlink.Attrs) { n++ })
	})
	return n, err
}

// Counters returns the number of packets that the counters of a set's elements have counted,
// by key.
func (c *Conn) Counters(ctx context.Context, s *Set) (packets map[string]uint64, err error) {
	err = c.retryInterrupted(ctx, fmt.Sprintf("list counters of %v %s", s.Table, s.Name), func() error {
		packets = map[string]uint64{}
		return c.elements(s, func(a netlink.Attrs) {
			packets[string(a.Get(unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))] = a.Number(unix.NFTA_SET_ELEM_EXPR, unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS)
		})
	})
	return packets, err
}

// retryInterrupted runs a listing again while changes interrupt it, a limited number of times.
func (c *Conn) retryInterrupted(ctx context.Context, what string, list func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordGeneration()
	if err := netlink.RetryInterrupted(ctx, netlink.Attempts, list); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func decodeElement(a netlink.Attrs) (e Element) {
	for kind, v := range a.All() {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = string(v.Get(unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_DATA:
			e.Data = string(v.Get(unix.NFTA_DATA_VALUE))
			if v = v.Get(unix.NFTA_DATA_VERDICT); v != nil {
				e.Verdict = Verdict{Code(v.Number(unix.NFTA_VERDICT_CODE)) + 1, v.Text(unix.NFTA_VERDICT_CHAIN)}
			}
		}
	}
	return e
}

// comment returns the comment in a rule's userdata, which consists of type-length-value
// triples.
func comment(userdata netlink.Attrs) string {
	for len(userdata) >= 2 && len(userdata) >= 2+int(userdata[1]) {
		end := 2 + int(userdata[1])
		if userdata[0] == udataComment {
			return userdata[2:end].Text()
		}
		userdata = userdata[end:]
	}
	return ""
}

// Element returns the element of a set with the key of the element key, whose other fields
// are ignored. It reports false if there is none.
func (c *Conn) Element(ctx context.Context, s *Set, key Element) (e Element, found bool, err error) {
	err = c.retryInterrupted(ctx, fmt.Sprintf("get an element of %v %s", s.Table, s.Name), func() error {
		found = false
		c.nl.Request(subsystem|unix.NFT_MSG_GETSETELEM, unix.NLM_F_ACK, netlink.Netfilter(s.Table.Family, 0), s.Table.Name, s.Name)
		c.nl.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
			encodeElement(&c.nl.Builder, &Element{Key: key.Key})
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
	err = c.retryInterrupted(ctx, fmt.Sprintf("list chain %s of %v", chain, t), func() error {
		rules = nil
		err := c.ask(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, t.Family, func(a netlink.Attrs) {
			if a.Text(tableAttribute) == t.Name && a.Text(unix.NFTA_RULE_CHAIN) == chain {
				rules = append(rules, decodeRule(a))
			}
		}, t.Name, chain)
		if err != nil {
			return err
		}
		return c.readRanges(t, rules)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return rules, err
}

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// Inspect reads back the elements of a row, the chains that they lead to, and the
// constant ones. It has a connection of its own, as metrics have.
func (d *Dataplane) Inspect(ctx context.Context, what proxy.Inspection) (proxy.Inspected, error) {
	if d.clients == nil {
		return proxy.Inspected{}, errors.ErrUnsupported
	}
	row, out, err := d.differ.Inspect(ctx, what.Row, func(x id) bool { return x.kind == aChain && x.t.family == what.Row.Family })
	if err != nil {
		return out, err
	}
	if row.ServicePort != nil && row.Affinity > 0 && what.Client.IsValid() {
		err = d.remembered(ctx, what, &out)
	}
	return out, err
}

// Row returns the row that the rules are for; nil: there is none.
func (d *Dataplane) Row(key proxy.PortKey) *proxy.ServicePort { return d.differ.Row(key).ServicePort }

// read gives what the kernel has of objects. A chain that is not there is as one
// without rules.
func (d *Dataplane) read(ctx context.Context, some []id, have func(id, value)) error {
	for _, x := range some {
		if x.kind == aChain {
			rules, err := d.clients.conn.Rules(ctx, x.t.Table, x.key)
			if err != nil {
				return err
			}
			have(x, value{chain: &chain{asListed: rules}})
			continue
		}
		e, found, err := d.clients.conn.Element(ctx, x.set, x.element(value{}))
		if err != nil {
			return err
		}
		if found {
			have(x.t.object(x.set, e))
		}
	}
	return nil
}

// remembered says which endpoint a client stays with: the one that it had of the
// list, or else of the row's other list.
func (d *Dataplane) remembered(ctx context.Context, what proxy.Inspection, out *proxy.Inspected) error {
	for _, t := range d.tables {
		if t.family != what.Row.Family {
			continue
		}
		b := t.blocks.byRow[what.Row]
		if b == nil {
			out.RememberedUnknown = "what chooses endpoints in this mode remembers clients itself"
			return nil
		}
		for _, scope := range []proxy.Scope{what.List, 1 - what.List} {
			key := string(what.Client.AsSlice()) + string(hostWord(b.number(scope)))
			e, _, err := d.clients.conn.Element(ctx, t.affinity, nft.Element{Key: key})
			if err != nil {
				return err
			}
			for a, p := range b.places {
				if p.in[what.List] && string(hostWord(b.number(scope)+p.at)) == e.Data {
					out.Remembered = a
					return nil
				}
			}
		}
	}
	return nil
}

// difference tells what an object should be and is, as the nft program would be
// told to write it. Nil: it is not there, and no chain.
func difference(x id, want, have *value) proxy.Difference {
	if x.kind == aChain {
		want, is := want.chain.listed(), have.chain.listed()
		return proxy.Difference{Object: "chain " + x.key, Want: rulesText(x, want, is), Have: rulesText(x, is, want)}
	}
	d := proxy.Difference{Object: "element of " + x.set.Name, Want: x.text(*want)}
	if have != nil {
		d.Have = x.text(*have)
	}
	return d
}

// rulesText returns the rules of a chain that another list of them has not.
func rulesText(x id, rules, other []nft.ListedRule) string {
	var lines []string
	for _, r := range rules {
		if slices.Contains(other, r) {
			continue
		}
		text, err := r.Text(x.t.Table, x.key)
		if err != nil {
			text = "a rule of another program"
		}
		lines = append(lines, text)
	}
	if lines == nil && len(rules) > 0 {
		return fmt.Sprintf("%d rules, in another order or more than once", len(rules))
	}
	return strings.Join(lines, "; ")
}

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

// Inspect implements [proxy.Inspector]. It reads the elements of a row, the chains that
// they refer to, and the constant chains, over the reader's connection.
func (d *Dataplane) Inspect(ctx context.Context, what proxy.Inspection) (proxy.Inspected, error) {
	if d.reader == nil {
		return proxy.Inspected{}, errors.ErrUnsupported
	}
	row, out, err := d.differ.Inspect(ctx, what.Row, func(x id) bool { return x.kind == kindChain && x.t.family == what.Row.Family })
	if err != nil {
		return out, err
	}
	if row.ServicePort != nil && row.Affinity > 0 && what.Client.IsValid() {
		err = d.remembered(ctx, what, &out)
	}
	return out, err
}

// Row returns the row that is in force; nil if there is none.
func (d *Dataplane) Row(key proxy.PortKey) *proxy.ServicePort { return d.differ.Row(key).ServicePort }

// read calls have for each of the objects that the kernel has. A missing chain is reported
// as one without rules.
func (d *Dataplane) read(ctx context.Context, some []id, have func(id, value)) error {
	for _, x := range some {
		if x.kind == kindChain {
			rules, err := d.reader.conn.Rules(ctx, x.t.Table, x.key)
			if err != nil {
				return err
			}
			have(x, value{chain: &chain{asListed: rules}})
			continue
		}
		e, found, err := d.reader.conn.Element(ctx, x.set, x.element(value{}))
		if err != nil {
			return err
		}
		if found {
			have(x.t.elementObject(x.set, e))
		}
	}
	return nil
}

// remembered sets out.Remembered to the endpoint that session affinity has for a client: the
// one of the list that the client uses, or else of the row's other list.
func (d *Dataplane) remembered(ctx context.Context, what proxy.Inspection, out *proxy.Inspected) error {
	for _, t := range d.tables {
		if t.family != what.Row.Family {
			continue
		}
		b := t.blocks.byRow[what.Row]
		if b == nil {
			out.RememberedUnknown = "this mode remembers clients outside the nftables rules"
			return nil
		}
		for _, scope := range []proxy.Scope{what.List, 1 - what.List} {
			key := string(what.Client.AsSlice()) + string(hostWord(b.number(scope)))
			e, _, err := d.reader.conn.Element(ctx, t.affinity, nft.Element{Key: key})
			if err != nil {
				return err
			}
			for a, p := range b.positions {
				if p.in[what.List] && string(hostWord(b.number(scope)+p.offset)) == e.Data {
					out.Remembered = a
					return nil
				}
			}
		}
	}
	return nil
}

// difference describes the wanted and the actual value of an object as nft commands. Have
// is nil if an element is missing; it is never nil for a chain.
func difference(x id, want, have *value) proxy.Difference {
	if x.kind == kindChain {
		want, is := want.chain.listed(), have.chain.listed()
		return proxy.Difference{Object: "chain " + x.key, Want: rulesText(x, want, is), Have: rulesText(x, is, want)}
	}
	d := proxy.Difference{Object: "element of " + x.set.Name, Want: x.text(*want)}
	if have != nil {
		d.Have = x.text(*have)
	}
	return d
}

// rulesText returns the rules of a chain that other does not contain, as nft commands.
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

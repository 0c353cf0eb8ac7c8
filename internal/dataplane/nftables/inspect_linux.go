package nftables

import (
	"cmp"
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
	var objects []object
	row, err := d.differ.Objects(what.Row, func(x id, v value) { objects = append(objects, object{x, v}) })
	if err != nil {
		return proxy.Inspected{}, err
	}
	d.differ.Constant(func(x id, v value) {
		if x.kind == aChain && x.t.family == what.Row.Family {
			objects = append(objects, object{x, v})
		}
	})
	var out proxy.Inspected
	for _, o := range objects {
		have, err := d.read(ctx, o.id)
		if err != nil {
			return out, err
		}
		if out.Objects++; have == nil || !same(o.value, *have) {
			out.Differences = append(out.Differences, difference(o, have))
		}
	}
	slices.SortFunc(out.Differences, func(a, b proxy.Difference) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Want, b.Want))
	})
	if row.ServicePort != nil && row.Affinity > 0 && what.Client.IsValid() {
		err = d.remembered(ctx, what, &out)
	}
	return out, err
}

// read returns what the kernel has of an object; nil: nothing. A chain that is not
// there is as one without rules.
func (d *Dataplane) read(ctx context.Context, x id) (*value, error) {
	if x.kind == aChain {
		rules, err := d.clients.conn.Rules(ctx, x.t.Table, x.key)
		if err != nil {
			return nil, err
		}
		return &value{chain: &chain{asListed: rules}}, nil
	}
	e, found, err := d.clients.conn.Element(ctx, x.set, x.element(value{}))
	if err != nil || !found {
		return nil, err
	}
	is, v := x.t.object(x.set, e)
	if is != x {
		return nil, nil // a range that has the key in it
	}
	return &v, nil
}

// remembered says which endpoint a client stays with.
func (d *Dataplane) remembered(ctx context.Context, what proxy.Inspection, out *proxy.Inspected) error {
	for _, t := range d.tables {
		if t.family != what.Row.Family {
			continue
		}
		b := t.blocks.byRow[what.Row]
		if b == nil {
			out.RememberedNot = "what chooses endpoints in this mode remembers clients itself"
			return nil
		}
		key := string(what.Client.AsSlice()) + string(hostWord(b.number(what.List)))
		e, found, err := d.clients.conn.Element(ctx, t.affinity, nft.Element{Key: key})
		if err != nil || !found {
			return err
		}
		for a, id := range b.lists[what.List].ids {
			if string(hostWord(id)) == e.Data {
				out.Remembered = a
			}
		}
	}
	return nil
}

// difference tells what an object should be and is, as the nft program would be
// told to write it. Nil: it is not there, and no chain.
func difference(o object, have *value) proxy.Difference {
	if o.kind == aChain {
		want, is := o.chain.listed(), have.chain.listed()
		return proxy.Difference{
			Object: "chain " + o.key, Want: rulesText(o.id, want, is), Have: rulesText(o.id, is, want),
		}
	}
	d := proxy.Difference{Object: "element of " + o.set.Name, Want: o.text(o.value)}
	if have != nil {
		d.Have = o.text(*have)
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

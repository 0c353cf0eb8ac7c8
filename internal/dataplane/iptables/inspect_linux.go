package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sluice/internal/proxy"
)

// maxInspectedChains bounds how many chains one inspection reads: it runs a program for
// each.
const maxInspectedChains = 64

// chainReader reads single chains.
type chainReader interface {
	Rules(ctx context.Context, table, chain string) (rules []string, found bool, err error)
}

// Inspect reads back the chains of a row, the shared chains that have rules of it, and
// the chains with constant rules. In shared chains it ignores the order of rules.
func (d *Dataplane) Inspect(ctx context.Context, what proxy.Inspection) (out proxy.Inspected, err error) {
	want := map[id]value{}
	row, err := d.differ.Objects(what.Row, func(x id, v value) { want[x] = v })
	if err != nil {
		return out, err
	}
	d.differ.Constant(func(x id, v value) {
		if x.f.Family == what.Row.Family && len(v.rules) > 0 {
			want[x] = v
		}
	})
	chains := map[chainRef][]id{}
	for x := range want {
		chains[x.chainRef] = append(chains[x.chainRef], x)
	}
	order := slices.SortedFunc(maps.Keys(chains), compareChainRefs)
	if more := len(order) - maxInspectedChains; more > 0 {
		order = order[:maxInspectedChains]
		out.Unread = fmt.Sprintf("%d more chains of the service port", more)
	}
	for _, p := range order {
		var differences []proxy.Difference
		objects := chains[p]
		programs, ok := objects[0].f.programs.(chainReader)
		if !ok {
			return out, errors.ErrUnsupported
		}
		have, found, err := programs.Rules(ctx, p.table, p.chain)
		if err != nil {
			return out, err
		}
		for _, x := range objects {
			if d, differs := x.compare(want[x], have, found); differs {
				differences = append(differences, d)
			}
		}
		out.Add(len(objects), differences...)
	}
	if row.ServicePort != nil && row.Affinity > 0 {
		out.RememberedUnknown = "kernel module xt_recent remembers clients, see /proc/net/xt_recent"
	}
	return out, nil
}

// compare compares an object with the rules of its chain, and reports whether they
// differ. A chain of ours that rows do not share must have exactly its rules; a shared or
// built-in chain must contain them.
func (x id) compare(v value, have []string, found bool) (proxy.Difference, bool) {
	lines := func(rules []string) string {
		var out []string
		for _, r := range rules {
			out = append(out, "-A "+x.chain+" "+r)
		}
		return strings.Join(out, "; ")
	}
	d := proxy.Difference{Object: "table " + x.table + " chain " + x.chain, Want: lines(v.rules)}
	if x.rule == "" && !x.shared() && !x.builtIn() {
		if found && len(have) == 0 {
			d.Have = "no rules"
		} else if found {
			d.Have = lines(have)
		}
		return d, !found || !slices.Equal(v.rules, have)
	}
	missing := slices.DeleteFunc(slices.Clone(v.rules), func(r string) bool { return slices.Contains(have, r) })
	d.Want = lines(missing)
	return d, len(missing) > 0
}

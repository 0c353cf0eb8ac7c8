package nftables

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/kernel/sysctl"
)

type planned = differ.Planned[id, value]

// Render writes down what Sync would write, as commands of the nft program.
func (o Overlay) Render(ctx context.Context, r *mode.Rendering) error {
	conn, host := nft.Interface(nothing{}), sysctl.Dry{}
	if r.Diff {
		kernel, err := nft.Open()
		if err != nil {
			return explain(err)
		}
		defer kernel.Close()
		conn, host.Kernel = kernel, sysctl.Kernel{}
	}
	d := o.New(conn, r.Settings)
	if d.localnet != nil {
		d.localnet = localnet.New(host, r.Others)
	}
	all, refused, err := differ.Plan(ctx, d.objects(), r.Want)
	if err != nil {
		return explain(err)
	}
	all = slices.DeleteFunc(all, func(p planned) bool { return !r.Concerns(p.Rows) || lingers(p) })
	for _, t := range d.tables {
		if err := t.render(r, slices.DeleteFunc(slices.Clone(all), func(p planned) bool { return p.ID.t != t })); err != nil {
			return err
		}
	}
	r.Refused(refused)
	return r.Err
}

// nothing is a kernel that has no tables.
type nothing struct{ nft.Interface }

func (nothing) List(context.Context, nft.Table) (*nft.Listing, error) { return nil, nil }

// lingers reports whether the kernel still has what a class was made of that no row
// needs now, as it may.
func lingers(p planned) bool {
	return !p.Has && sharing(p.ID) == differ.Lingers && (p.ID.kind != aChain || p.ID.t.leadsTo(p.ID.key))
}

// render writes objects down: what others are in, then rules, then elements, which
// refer to chains.
func (t *table) render(r *mode.Rendering, all []planned) error {
	slices.SortStableFunc(all, func(a, b planned) int {
		order := cmp.Or(cmp.Compare(a.ID.kind, b.ID.kind), cmp.Compare(t.rank[a.ID.set], t.rank[b.ID.set]))
		if order == 0 && (a.ID.kind == anElement || r.Diff) { // else it is the order of writing
			order = cmp.Compare(a.ID.key, b.ID.key)
		}
		return order
	})
	r.Title(t.Table.String() + ", sets, maps and chains")
	for _, p := range all {
		writeContainer(r, p)
	}
	r.Title(t.Table.String() + ", rules")
	for _, p := range all {
		if err := writeRules(r, p); err != nil {
			return err
		}
	}
	r.Title(t.Table.String() + ", elements")
	for _, p := range all {
		if p.ID.kind == anElement {
			r.Print(p.Sides(func(x id, v value) []string { return []string{x.text(v)} }))
		}
	}
	return nil
}

// writeContainer writes down what others are in, if it comes or goes.
func writeContainer(r *mode.Rendering, p planned) {
	switch {
	case p.ID.kind == aTable && p.Had:
		r.Remark("%v is not as ours, it is made anew: of another kind, asleep or with other hooks", p.ID.t.Table)
	case p.ID.kind == anElement || p.Had && p.Has:
		return
	}
	r.Print(p.Sides(func(x id, v value) []string {
		if x.kind == otherTable {
			return []string{fmt.Sprintf("add table %v %s", x.t.Table.Family, kubeProxyTable)}
		}
		var b nft.Batch
		addContainer(&b, &change{ID: x, New: v, Has: true})
		return []string{b.Ops[0].Text()}
	}))
}

// writeRules writes the rules of a chain down. Those in the kernel may be anybody's.
func writeRules(r *mode.Rendering, p planned) error {
	if p.ID.kind != aChain {
		return nil
	}
	t, chain := p.ID.t.Table, p.ID.key
	var was, is []string
	if p.Had {
		for _, rule := range p.Old.chain.listed() {
			line, err := rule.Text(t, chain)
			if err != nil {
				line = fmt.Sprintf("a rule of another program in chain %s: comment %q, %q", chain, rule.Comment, rule.Exprs)
			}
			was = append(was, line)
		}
	}
	if p.Has {
		for _, rule := range p.New.chain.listed() {
			line, err := rule.Text(t, chain)
			if err != nil {
				return err
			}
			if why := rule.Unreadable(t.Family); why != "" && !r.Diff {
				line = "# " + why + ": " + line
			}
			is = append(is, line)
		}
	}
	r.Print(was, is)
	return nil
}

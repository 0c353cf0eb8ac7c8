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

// Render prints what Sync would write as nft commands, or with r.Diff what it would change in
// the kernel.
func (o Overlay) Render(ctx context.Context, r *mode.Rendering) error {
	conn, host := nft.Interface(emptyKernel{}), sysctl.Dry{}
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

// emptyKernel lists no tables.
type emptyKernel struct{ nft.Interface }

func (emptyKernel) List(context.Context, nft.Table) (*nft.Listing, error) { return nil, nil }

// lingers reports whether p deletes an object of a class that no row uses. A daemon keeps
// such objects for a while, so they do not count as a difference.
func lingers(p planned) bool {
	return !p.Has && sharing(p.ID) == differ.Lingers && (p.ID.kind != kindChain || p.ID.t.isJumpTarget(p.ID.key))
}

// render prints objects: tables, sets and chains first, then rules, then elements, which
// refer to chains.
func (t *table) render(r *mode.Rendering, all []planned) error {
	slices.SortStableFunc(all, func(a, b planned) int {
		order := cmp.Or(cmp.Compare(a.ID.kind, b.ID.kind), cmp.Compare(t.rank[a.ID.set], t.rank[b.ID.set]))
		if order == 0 && (a.ID.kind == kindElement || r.Diff) { // rules of chains stay in the order of writing
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
		if p.ID.kind == kindElement {
			r.Print(p.Sides(func(x id, v value) []string { return []string{x.text(v)} }))
		}
	}
	return nil
}

// writeContainer prints a table, set or chain that is added or deleted.
func writeContainer(r *mode.Rendering, p planned) {
	switch {
	case p.ID.kind == kindTable && p.Had:
		r.Remark("%v cannot be repaired and is replaced: it is dormant, or has other hooks or types of sets", p.ID.t.Table)
	case p.ID.kind == kindElement || p.Had && p.Has:
		return
	}
	r.Print(p.Sides(func(x id, v value) []string {
		if x.kind == kindKubeProxyTable {
			return []string{fmt.Sprintf("add table %v %s", x.t.Table.Family, kubeProxyTable)}
		}
		var b nft.Batch
		addContainer(&b, &change{ID: x, New: v, Has: true})
		return []string{b.Ops[0].Text()}
	}))
}

// writeRules prints the rules of a chain. Rules in the kernel may come from any program, so
// one without a text is not an error.
func writeRules(r *mode.Rendering, p planned) error {
	if p.ID.kind != kindChain {
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

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
func Render(ctx context.Context, r *mode.Rendering) error { return RenderOverlay(ctx, r, alone) }

// RenderOverlay is Render for a mode that stands on the rules.
func RenderOverlay(ctx context.Context, r *mode.Rendering, o Overlay) error {
	conn, host := nft.Interface(nothing{}), sysctl.Dry{}
	if r.Diff {
		kernel, err := nft.Open()
		if err != nil {
			return explain(err)
		}
		defer kernel.Close()
		conn, host.Kernel = kernel, sysctl.Kernel{}
	}
	d := NewOverlay(conn, r.Settings, o)
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
	return !p.Has && (p.ID.kind == aChain && p.ID.t.leadsTo(p.ID.key) || p.ID.set == p.ID.t.classSet)
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
	for _, part := range []struct {
		title string
		write func(*mode.Rendering, planned) error
	}{
		{"sets, maps and chains", writeContainer}, {"rules", writeRules}, {"elements", writeElement},
	} {
		r.Title(t.Table.String() + ", " + part.title)
		for _, p := range all {
			if err := part.write(r, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeContainer writes down what others are in.
func writeContainer(r *mode.Rendering, p planned) error {
	var b nft.Batch
	switch t := p.ID.t; {
	case p.ID.kind == aTable && p.Had: // it is not as ours
		r.Remark("%v is of another kind, dormant or with other hooks: it is made anew", t.Table)
		b.AddTable(t.Table)
	case p.ID.kind == otherTable:
		r.Print([]string{fmt.Sprintf("add table %v %s", t.Table.Family, kubeProxyTable)}, nil)
	case p.ID.kind == anElement || p.Had && p.Has:
	case p.Has:
		addContainer(&b, p.Change)
	default:
		addContainer(&b, &change{ID: p.ID, New: p.Old, Has: true})
	}
	for i := range b.Ops {
		text, err := b.Ops[i].Text()
		if err != nil {
			return err
		}
		r.Print(sides(p, text))
	}
	return nil
}

// sides returns a line as one of the kernel, or as one that is wanted.
func sides(p planned, line string) (was, is []string) {
	if p.Has {
		return nil, []string{line}
	}
	return []string{line}, nil
}

// writeRules writes the rules of a chain down. Those in the kernel may be anybody's.
func writeRules(r *mode.Rendering, p planned) error {
	if p.ID.kind != aChain {
		return nil
	}
	var was, is []string
	if p.Had {
		for _, rule := range p.Old.chain.listed() {
			text, err := rule.Text(p.ID.t.Table, p.ID.key)
			if err != nil {
				text = fmt.Sprintf("a rule of another program in chain %s: comment %q, %q", p.ID.key, rule.Comment, rule.Exprs)
			}
			was = append(was, text)
		}
	}
	if p.Has {
		for _, rule := range p.New.chain.listed() {
			text, err := rule.Text(p.ID.t.Table, p.ID.key)
			if err != nil {
				return err
			}
			if why := rule.Unreadable(p.ID.t.Table.Family); why != "" && !r.Diff {
				r.Print(nil, is)
				r.Remark("%s:", why)
				r.Remark("%s", text)
				is = nil
				continue
			}
			is = append(is, text)
		}
	}
	r.Print(was, is)
	return nil
}

// writeElement writes an element of a set down.
func writeElement(r *mode.Rendering, p planned) error {
	if p.ID.kind != anElement {
		return nil
	}
	var was, is []string
	for _, side := range []struct {
		there bool
		value value
		lines *[]string
	}{{p.Had, p.Old, &was}, {p.Has, p.New, &is}} {
		if side.there {
			op := nft.Op{Kind: nft.AddElement, Table: p.ID.t.Table, Set: p.ID.set, Element: p.ID.element(side.value)}
			text, err := op.Text()
			if err != nil {
				return err
			}
			*side.lines = append(*side.lines, text)
		}
	}
	r.Print(was, is)
	return nil
}

package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

type planned = differ.Planned[id, value]

// Render prints what Sync would write, as input for iptables-restore --noflush.
func Render(ctx context.Context, r *mode.Rendering) error {
	d, err := dry(ctx, r)
	if err != nil {
		return err
	}
	all, refused, err := differ.Plan(ctx, d.objects(), r.Want)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission to read iptables: run as root: %w", err)
	case err != nil:
		return err
	}
	all = slices.DeleteFunc(all, func(p planned) bool { return !r.Concerns(p.Rows) })
	slices.SortFunc(all, func(a, b planned) int {
		return cmp.Or(compareChainRefs(a.ID.chainRef, b.ID.chainRef), cmp.Compare(a.ID.rule, b.ID.rule))
	})
	for _, f := range d.families {
		own := slices.DeleteFunc(slices.Clone(all), func(p planned) bool { return p.ID.f != f })
		if r.Diff {
			f.printDiff(r, own)
		} else {
			f.printRestore(r, own)
		}
	}
	r.Refused(refused)
	return r.Err
}

// dry returns a dataplane for differ.Plan. It lists the tables of the host only for a
// diff.
func dry(ctx context.Context, r *mode.Rendering) (*Dataplane, error) {
	programs, variant, host := map[proxy.Family]ipt.Interface{}, ipt.NFT, sysctl.Dry{}
	for _, f := range r.Served() {
		programs[f] = emptyTables{}
	}
	if r.Diff {
		var err error
		if variant, err = hostVariant(ctx); err != nil {
			return nil, err
		}
		for _, f := range r.Served() {
			if programs[f], err = ipt.Open(ctx, iptFamily(f), variant); err != nil {
				return nil, err
			}
		}
		host.Kernel = sysctl.Kernel{}
	}
	return newDataplane(programs, host, r.Settings, variant), nil
}

// emptyTables are tables without a chain.
type emptyTables struct{ ipt.Interface }

func (emptyTables) Save(context.Context) ([]ipt.Table, error)      { return nil, nil }
func (emptyTables) Stamp(context.Context, bool) (ipt.Stamp, error) { return ipt.Stamp{}, nil }

// printRestore prints the input for iptables-restore that makes changes.
func (f *family) printRestore(r *mode.Rendering, all []planned) {
	r.Title(fmt.Sprintf("%v, for %vtables-restore --noflush", f.Family, iptFamily(f.Family)))
	var some []*change
	for _, p := range all {
		some = append(some, p.Change)
	}
	for _, l := range script(some) {
		r.Print(nil, []string{l.text})
	}
}

// printDiff prints, chain by chain, the lines that changes remove and add.
func (f *family) printDiff(r *mode.Rendering, all []planned) {
	for from, to := 0, 0; from < len(all); from = to {
		var was, is []string
		for to = from; to < len(all) && all[to].ID.chainRef == all[from].ID.chainRef; to++ {
			p := all[to]
			if p.Had {
				was = append(was, p.ID.lines(p.Old, !p.Has)...)
			}
			if p.Has {
				is = append(is, p.ID.lines(p.New, !p.Had)...)
			}
		}
		r.Title(fmt.Sprintf("%v, table %s", f.Family, all[from].ID.table))
		r.Print(was, is)
	}
}

// lines returns an object as iptables-save prints it. If declared is true and the object
// is a chain of ours, that includes its declaration.
func (x id) lines(v value, declared bool) (out []string) {
	if declared && x.rule == "" && !x.builtIn() {
		out = append(out, declaration(x.chainRef))
	}
	for _, rule := range v.rules {
		out = append(out, "-A "+x.chain+" "+rule)
	}
	return out
}

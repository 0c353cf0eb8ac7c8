package iptables

import (
	"context"
	"errors"
	"slices"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// list gives what the tables have of ours. It is also where is found out what the
// host's settings are and who opened loopback, before constant rules are rendered.
func (d *Dataplane) list(ctx context.Context, want *proxy.State, have func(id, value)) (rest func() error, empty bool, err error) {
	empty = true
	// Where the setting cannot be read the rule is needed. The daemon may set it after Open.
	liberal, err := sysctl.ReadInt(d.sysctls, "net/netfilter/nf_conntrack_tcp_be_liberal")
	d.liberal = err == nil && liberal != 0
	for _, f := range d.families {
		if err := f.begin(ctx); err != nil {
			return nil, false, err
		}
		tables, err := f.programs.Save(ctx)
		if err != nil {
			return nil, false, err
		}
		for _, t := range tables {
			if f.contents.unreadable[t.Name] = t.Unreadable; t.Unreadable {
				klog.FromContext(ctx).Info("Table has rules that iptables cannot list, such as an nft program restores: ours are written without looking, "+
					"and theirs stay; flush it with nft", "table", t.Name, "family", f.Family.String())
			}
		}
		saved := index(tables)
		if err := findUnlisted(ctx, f.programs, tables, saved, jumps); err != nil {
			return nil, false, err
		}
		if f.Family == proxy.IPv4 {
			d.localnet.Find(ctx, loopbackOf(saved).Traces)
			d.guard = d.localnet.Guard(ctx, want.Node.OpensLoopback())
		}
		constants, used := d.constants(f, want), usedByOthers(saved)
		for p, c := range saved {
			f.listChain(p, c, constants[p], used[p] != "", func(x id, v value) {
				empty = false
				f.note(x, v, 1)
				have(x, v)
			})
		}
	}
	return nil, empty, nil
}

func (f *family) listChain(p chainRef, c *ipt.Chain, constant []string, used bool, have func(id, value)) {
	chain := id{f: f, chainRef: p}
	switch {
	case jumps[p] != nil || c.Policy != "":
		rules := entries(p.table, c)
		if f.rewrite[p] { // ours can be deleted: the others stay
			rules = slices.DeleteFunc(rules, func(r string) bool { return !slices.Contains(jumps[p], r) })
		}
		if len(rules) > 0 {
			have(chain, value{rules: rules})
		}
	case p.builtIn(): // another program's
	case p.shared():
		rows, ok := splitShared(p, c.Rules, constant)
		if !ok || f.rewrite[p] {
			have(chain, value{rules: c.Rules, foreign: true})
			return
		}
		have(chain, value{rules: constant})
		for i, r := range rows {
			have(id{f, p, r}, value{rules: rows[i : i+1]})
		}
	default:
		have(chain, value{rules: c.Rules, used: used})
	}
}

// entries returns the rules of a built-in chain by which our chains are entered.
func entries(table string, c *ipt.Chain) []string {
	return slices.DeleteFunc(slices.Clone(c.Rules), func(r string) bool { return !isEntry(table, r) })
}

// splitShared returns the rules of rows in a chain that they share. It is not ok if
// constant rules are not as they should be, or one of a row is there twice: then
// the chain is written anew.
func splitShared(p chainRef, rules, constant []string) (rows []string, ok bool) {
	n := len(constant)
	if len(rules) < n {
		return nil, false
	}
	at, rows := rules[:n], rules[n:]
	if p.rowsFirst() {
		rows, at = rules[:len(rules)-n], rules[len(rules)-n:]
	}
	seen := make(map[string]bool, len(rows))
	for _, r := range rows {
		seen[r] = true
	}
	return rows, slices.Equal(at, constant) && len(seen) == len(rows)
}

func index(tables []ipt.Table) map[chainRef]*ipt.Chain {
	saved := map[chainRef]*ipt.Chain{}
	for i := range tables {
		for j := range tables[i].Chains {
			c := &tables[i].Chains[j]
			saved[chainRef{tables[i].Name, c.Name}] = c
		}
	}
	return saved
}

// findUnlisted adds chains of tables that cannot be listed to those that were saved, with
// those of some rules that they have: iptables can be asked for a rule there.
func findUnlisted(ctx context.Context, programs ipt.Interface, tables []ipt.Table, saved map[chainRef]*ipt.Chain, some map[chainRef][]string) error {
	if !slices.ContainsFunc(tables, func(t ipt.Table) bool { return t.Unreadable }) {
		return nil
	}
	uses, err := programs.Uses(ctx)
	if err != nil {
		return err
	}
	for p, rules := range some {
		if _, there := uses[p.table][p.chain]; !there || saved[p] != nil {
			continue
		}
		saved[p] = &ipt.Chain{Name: p.chain}
		for _, rule := range rules {
			err := programs.Restore(ctx, []byte("*"+p.table+"\n-C "+p.chain+" "+rule+"\nCOMMIT\n"))
			switch { // else it is not there, or the program cannot read what is
			case err == nil:
				saved[p].Rules = append(saved[p].Rules, rule)
			case errors.Is(err, ipt.ErrLocked), ctx.Err() != nil:
				return err
			}
		}
	}
	return nil
}

// usedByOthers returns our chains that rules of others go to, and the first chain
// that has such a rule.
func usedByOthers(saved map[chainRef]*ipt.Chain) map[chainRef]string {
	used := map[chainRef]string{}
	for p, c := range saved {
		if !p.builtIn() {
			continue
		}
		for _, r := range c.Rules {
			to := chainRef{p.table, ipt.Target(r)}
			if !to.builtIn() && !(c.Policy != "" && isEntry(p.table, r)) && (used[to] == "" || p.chain < used[to]) {
				used[to] = p.chain
			}
		}
	}
	return used
}

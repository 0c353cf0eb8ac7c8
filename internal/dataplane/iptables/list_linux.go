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

// list lists our objects in the tables. It also reads settings of the host, and finds
// out who set route_localnet, because constant rules, which are rendered next, depend
// on both.
func (d *Dataplane) list(ctx context.Context, want *proxy.State, have func(id, value)) (rest func() error, empty bool, err error) {
	empty = true
	// If the setting cannot be read, the rule that drops invalid packets is needed. It is
	// read each time because the daemon may change it after Open.
	liberal, err := sysctl.ReadInt(d.sysctls, "net/netfilter/nf_conntrack_tcp_be_liberal")
	d.liberal = err == nil && liberal != 0
	for _, f := range d.families {
		if err := f.beginSync(ctx); err != nil {
			return nil, false, err
		}
		tables, err := f.programs.Save(ctx)
		if err != nil {
			return nil, false, err
		}
		for _, t := range tables {
			if f.checksums.unreadable[t.Name] = t.Unreadable; t.Unreadable {
				klog.FromContext(ctx).Info("Table has rules that iptables cannot list, for example because nft restored them; "+
					"writing our rules without comparing, the others stay until the table is flushed with nft", "table", t.Name, "family", f.Family.String())
			}
		}
		saved := indexChains(tables)
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
				f.recordObject(x, v, 1)
				have(x, v)
			})
		}
	}
	return nil, empty, nil
}

// listChain lists the objects of one chain. Constant has the rules that the chain
// should have; used is whether rules of other programs jump to it.
func (f *family) listChain(p chainRef, c *ipt.Chain, constant []string, used bool, have func(id, value)) {
	chain := id{f: f, chainRef: p}
	switch {
	case jumps[p] != nil || c.Policy != "":
		rules := entries(p.table, c)
		if f.rewrite[p] { // only our own rules can be deleted by their text
			rules = slices.DeleteFunc(rules, func(r string) bool { return !slices.Contains(jumps[p], r) })
		}
		if len(rules) > 0 {
			have(chain, value{rules: rules})
		}
	case p.builtIn(): // a chain of another program
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

// entries returns the rules of a built-in chain that jump to our chains.
func entries(table string, c *ipt.Chain) []string {
	return slices.DeleteFunc(slices.Clone(c.Rules), func(r string) bool { return !isEntry(table, r) })
}

// splitShared returns the rules of rows in a chain that they share. It returns false
// if the constant rules are not as they should be, or if a rule exists twice: then the
// chain must be rewritten.
func splitShared(p chainRef, rules, constant []string) (rows []string, ok bool) {
	n := len(constant)
	if len(rules) < n {
		return nil, false
	}
	have, rows := rules[:n], rules[n:]
	if p.rowsFirst() {
		rows, have = rules[:len(rules)-n], rules[len(rules)-n:]
	}
	seen := make(map[string]bool, len(rows))
	for _, r := range rows {
		seen[r] = true
	}
	return rows, slices.Equal(have, constant) && len(seen) == len(rows)
}

// indexChains returns the chains of saved tables by table and name.
func indexChains(tables []ipt.Table) map[chainRef]*ipt.Chain {
	saved := map[chainRef]*ipt.Chain{}
	for i := range tables {
		for j := range tables[i].Chains {
			c := &tables[i].Chains[j]
			saved[chainRef{tables[i].Name, c.Name}] = c
		}
	}
	return saved
}

// findUnlisted adds chains of unreadable tables to saved, with those of the given rules
// that they have. The programs cannot list such a table, but they can check for a rule.
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
			switch { // any other error means that the rule does not exist or cannot be read
			case err == nil:
				saved[p].Rules = append(saved[p].Rules, rule)
			case errors.Is(err, ipt.ErrLocked), ctx.Err() != nil:
				return err
			}
		}
	}
	return nil
}

// usedByOthers returns those of our chains that rules of other programs jump to, each
// with the first chain that has such a rule.
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

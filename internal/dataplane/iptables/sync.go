package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/kubeproxy"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// Sync makes the kernel right whatever was there before. It saves the tables
// and writes only what differs; what clients are remembered for stays.
func (d *Dataplane) Sync(ctx context.Context, s *proxy.State) error {
	return d.reach(ctx, &proxy.State{
		Rows: maps.Clone(s.Rows), HealthChecks: maps.Clone(s.HealthChecks), Node: s.Node, CIDRs: s.CIDRs,
	}, nil)
}

// reach syncs to a state, which it keeps. A row that is refused takes its
// earlier form if it has one, else it is left out.
func (d *Dataplane) reach(ctx context.Context, s *proxy.State, earlier map[proxy.PortKey]*proxy.ServicePort) error {
	d.node = nil // until the end, Apply has nothing to stand on
	refused := map[proxy.PortKey]error{}
	for {
		err := d.sync(ctx, s)
		if err == nil {
			break
		}
		to, failed := d.blame(ctx, err, s.Rows)
		if failed != nil {
			return failed
		}
		for row, reason := range to {
			if old := earlier[row]; old != nil && refused[row] == nil {
				s.Rows[row] = old
			} else {
				delete(s.Rows, row)
			}
			refused[row] = reason
		}
	}
	d.node, d.cidrs, d.rows, d.checks = s.Node, s.CIDRs, s.Rows, s.HealthChecks
	if err := d.openLoopback(); err != nil {
		return err
	}
	d.tellAffinity(ctx)
	if len(refused) > 0 {
		return &proxy.RefusedError{Rows: refused}
	}
	return nil
}

// blame returns the rows that an error is about, and the error itself if it is
// about none.
func (d *Dataplane) blame(ctx context.Context, err error, rows map[proxy.PortKey]*proxy.ServicePort) (map[proxy.PortKey]error, error) {
	var r *refusal
	if errors.As(err, &r) && rows[r.row] != nil {
		return map[proxy.PortKey]error{r.row: r.err}, nil
	}
	var refused *ipt.RestoreError
	if !errors.As(err, &refused) {
		return nil, err
	}
	lacking, failed := d.lacking(ctx, rows)
	if failed != nil || len(lacking) == 0 {
		return nil, errors.Join(err, failed)
	}
	return lacking, nil
}

func (d *Dataplane) sync(ctx context.Context, s *proxy.State) error {
	if err := d.prepareCounters(ctx); err != nil {
		return err
	}
	for _, f := range d.families {
		m, err := d.mending(ctx, f, s)
		if err != nil {
			return err
		}
		wrote, err := f.restore(ctx, m.script)
		if err == nil && wrote && !f.checked {
			err = f.check(ctx, m.want)
		}
		if err != nil {
			return err
		}
		f.checked, f.owned = true, map[string]int{}
		m.growth = m.want.rules()
		d.report(f, m.script)
	}
	return nil
}

// report tells what was written.
func (d *Dataplane) report(f *family, s *script) {
	for _, table := range []string{filter, nat} {
		f.owned[table] += s.growth[table]
		if d.settings.Wrote != nil {
			d.settings.Wrote(Written{f.Family, table, s.rules(table), f.owned[table]})
		}
	}
}

// mending compares what a family has with what it should have.
func (d *Dataplane) mending(ctx context.Context, f *family, s *proxy.State) (*mending, error) {
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	tables, err := f.programs.Save(ctx)
	if err != nil {
		return nil, err
	}
	m := &mending{script: newScript(), saved: index(tables), want: d.target(f, s)}
	m.mend()
	return m, nil
}

// check looks whether the tables hold all that they should, before what was
// there earlier is given up. Other releases of the programs may print a rule in
// other words than ours, so rules are counted.
func (f *family) check(ctx context.Context, want *target) error {
	tables, err := f.programs.Save(ctx)
	if err != nil {
		return err
	}
	saved, rules := index(tables), map[place]int{}
	for p, constant := range want.constants {
		rules[p] = len(constant) + len(want.shared[p])
	}
	for _, c := range want.own {
		rules[c.place] = len(c.rules)
	}
	for _, j := range jumps() {
		rules[j.place] = 0 // beside others' rules
	}
	for p, n := range rules {
		if c := saved[p]; c == nil || len(c.Rules) < n {
			return fmt.Errorf("check what was written: chain %s of table %s, %v, is not there or lacks rules", p.chain, p.table, f.Family)
		}
	}
	what, err := f.lost(ctx)
	if err == nil && what != "" {
		err = fmt.Errorf("check what was written: %s", what)
	}
	return err
}

// target is everything that one family should have.
type target struct {
	constants map[place][]string
	shared    map[place][]rowRule
	own       []whole
}

// rowRule is a rule of a row.
type rowRule struct {
	rule  string
	owner *proxy.PortKey
}

func (d *Dataplane) target(f *family, s *proxy.State) *target {
	v := newView(f, s.Node, s.CIDRs)
	t := &target{constants: d.constants(v), shared: map[place][]rowRule{}}
	for _, key := range s.Keys() {
		if key.Family != f.Family {
			continue
		}
		r := v.render(s.Rows[key])
		for _, name := range r.names {
			t.own = append(t.own, whole{place{nat, name}, r.chains[name], &key})
		}
		t.add(r.shared, &key)
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.HealthChecks), proxy.CompareHealthCheckKeys) {
		if key.Family == f.Family {
			t.add(checkLines(s.HealthChecks[key]), nil)
		}
	}
	return t
}

// rules counts the rules of each table, those of the built-in chains among them.
func (t *target) rules() map[string]int {
	n := map[string]int{}
	for p, rules := range t.constants {
		n[p.table] += len(rules) + len(t.shared[p])
	}
	for _, c := range t.own {
		n[c.table] += len(c.rules)
	}
	for _, j := range jumps() {
		n[j.table]++
	}
	return n
}

func (t *target) add(lines []line, owner *proxy.PortKey) {
	for _, l := range lines {
		t.shared[l.place] = append(t.shared[l.place], rowRule{l.rule, owner})
	}
}

// mending finds what is to be done to what was saved.
type mending struct {
	*script
	saved map[place]*ipt.Chain
	want  *target
}

func index(tables []ipt.Table) map[place]*ipt.Chain {
	saved := map[place]*ipt.Chain{}
	for i := range tables {
		for j := range tables[i].Chains {
			c := &tables[i].Chains[j]
			saved[place{tables[i].Name, c.Name}] = c
		}
	}
	return saved
}

func (m *mending) mend() {
	for p, rules := range m.want.constants {
		if !slices.Contains(places(), p) && !m.has(p, rules) {
			m.rewrite(p, rules)
		}
	}
	for _, p := range places() {
		m.mendShared(p)
	}
	for _, c := range m.want.own {
		if !m.has(c.place, c.rules) {
			m.whole = append(m.whole, c)
		}
	}
	m.jumps()
	m.sweep()
}

// has reports whether a chain is there and has exactly these rules.
func (m *mending) has(p place, rules []string) bool {
	c := m.saved[p]
	return c != nil && slices.Equal(c.Rules, rules)
}

// mendShared rewrites a chain that rows share unless it is right. The order of
// rules of rows has no meaning.
func (m *mending) mendShared(p place) {
	constant, rows := m.want.constants[p], m.want.shared[p]
	if c := m.saved[p]; c != nil && rightShared(p, c.Rules, constant, rows) {
		return
	}
	m.chain(p)
	fixed := func() {
		for _, r := range constant {
			m.append(p, r)
		}
	}
	if !p.first() {
		fixed()
	}
	for _, l := range rows {
		m.owner = l.owner
		m.append(p, l.rule)
		m.owner = nil
	}
	if p.first() {
		fixed()
	}
}

func rightShared(p place, have, constant []string, rows []rowRule) bool {
	if len(have) != len(constant)+len(rows) {
		return false
	}
	at, rest := have[:len(constant)], have[len(constant):]
	if p.first() {
		rest, at = have[:len(rows)], have[len(rows):]
	}
	if !slices.Equal(at, constant) {
		return false
	}
	count := make(map[string]int, len(rows))
	for _, l := range rows {
		count[l.rule]++
	}
	for _, r := range rest {
		if count[r]--; count[r] < 0 {
			return false
		}
	}
	return true
}

// jumps puts the rules that lead to us at the top of the built-in chains, if
// they are not all there in order. What others have put before them stays there.
func (m *mending) jumps() {
	want := map[place][]string{}
	for _, j := range jumps() {
		want[j.place] = append(want[j.place], j.rule)
	}
	for p, c := range m.saved {
		if c.Policy != "" && want[p] == nil {
			want[p] = nil // there may be some of an earlier version
		}
	}
	for p, rules := range want {
		var have []string
		if c := m.saved[p]; c != nil {
			for _, r := range c.Rules {
				if leadsToUs(p.table, r) {
					have = append(have, r)
				}
			}
		}
		if slices.Equal(have, rules) {
			continue
		}
		for _, r := range have {
			m.delete(p, r)
		}
		for _, r := range slices.Backward(rules) {
			m.insert(p, r)
		}
	}
}

// leadsToUs reports whether a rule of a built-in chain is one of ours or
// kube-proxy's. Marking for masquerade is a service that others may use.
func leadsToUs(table, rule string) bool {
	to := ipt.Target(rule)
	return kubeproxy.Owns(table, to) && to != kubeMark
}

// sweep removes chains that are not wanted. One that a chain of somebody else
// leads to cannot go; it is emptied.
func (m *mending) sweep() {
	used := map[place]bool{}
	for p, c := range m.saved {
		for _, r := range c.Rules {
			if !kubeproxy.Owns(p.table, p.chain) && !(c.Policy != "" && leadsToUs(p.table, r)) {
				used[place{p.table, ipt.Target(r)}] = true
			}
		}
	}
	own := make(map[place]bool, len(m.want.own))
	for _, c := range m.want.own {
		own[c.place] = true
	}
	for p, c := range m.saved {
		_, constant := m.want.constants[p]
		switch {
		case !kubeproxy.Owns(p.table, p.chain) || constant || own[p]:
		case !used[p]:
			m.remove(p)
		case len(c.Rules) > 0:
			m.chain(p)
		}
	}
}

// openLoopback lets the node's connections from loopback addresses reach
// endpoints, once the rule is in force that keeps others from loopback.
func (d *Dataplane) openLoopback() error {
	const name = "net/ipv4/conf/all/route_localnet"
	if !d.node.LocalhostNodePorts || !slices.ContainsFunc(d.families, func(f *family) bool { return f.Family == proxy.IPv4 }) {
		return nil
	}
	if on, err := sysctl.ReadInt(d.sysctls, name); err == nil && on == 1 {
		return nil
	}
	if err := d.sysctls.Write(name, "1"); err != nil {
		return fmt.Errorf("open NodePorts on loopback addresses: %w", err)
	}
	return nil
}

// tellAffinity says once how many clients the kernel remembers. The number
// cannot be changed while the module is loaded.
func (d *Dataplane) tellAffinity(ctx context.Context) {
	if d.told {
		return
	}
	d.told = true
	if n, err := sysctl.ReadInt(d.sysctls, "/sys/module/xt_recent/parameters/ip_list_tot"); err == nil {
		klog.FromContext(ctx).Info("Session affinity remembers so many clients of each endpoint and then forgets the oldest, "+
			"load module xt_recent with ip_list_tot for more", "clients", n)
	}
}

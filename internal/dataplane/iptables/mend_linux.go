package iptables

import (
	"maps"
	"slices"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// target is everything that one family should have.
type target struct {
	constants map[chainRef][]string
	shared    map[chainRef][]rowRule
	own       []whole
}

// rowRule is a rule of a row.
type rowRule struct {
	rule  string
	owner *proxy.PortKey
}

func (d *Dataplane) target(f *family, s *proxy.State) *target {
	v := newNodeMatches(f, s.Node, s.CIDRs, d.guard)
	t := &target{constants: d.constants(v), shared: map[chainRef][]rowRule{}}
	for _, key := range s.Keys() {
		if key.Family != f.Family {
			continue
		}
		r := v.render(s.Rows[key])
		for _, name := range r.names {
			t.own = append(t.own, whole{chainRef: chainRef{nat, name}, rules: r.chains[name], owner: &key})
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
		t.shared[l.chainRef] = append(t.shared[l.chainRef], rowRule{l.rule, owner})
	}
}

// mending finds what is to be done to what was saved.
type mending struct {
	*script
	saved map[chainRef]*ipt.Chain
	want  *target
}

// newMending compares what was saved with what should be.
func newMending(saved []ipt.Table, want *target) *mending {
	m := &mending{script: newScript(), saved: index(saved), want: want}
	m.had = func(p chainRef) int {
		if c := m.saved[p]; c != nil {
			return len(c.Rules)
		}
		return absent
	}
	m.mend()
	return m
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

func (m *mending) mend() {
	for p, rules := range m.want.constants {
		if !slices.Contains(sharedChains(), p) && !m.has(p, rules) {
			m.rewrite(p, rules)
		}
	}
	for _, p := range sharedChains() {
		m.mendShared(p)
	}
	for _, c := range m.want.own {
		if !m.has(c.chainRef, c.rules) {
			c.had = m.had(c.chainRef)
			m.whole = append(m.whole, c)
		}
	}
	m.jumps()
	m.sweep()
}

// has reports whether a chain is there and has exactly these rules.
func (m *mending) has(p chainRef, rules []string) bool {
	c := m.saved[p]
	return c != nil && slices.Equal(c.Rules, rules)
}

// mendShared rewrites a chain that rows share unless it is right. The order of
// rules of rows has no meaning.
func (m *mending) mendShared(p chainRef) {
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

func rightShared(p chainRef, have, constant []string, rows []rowRule) bool {
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
	want := map[chainRef][]string{}
	for _, j := range jumps() {
		want[j.chainRef] = append(want[j.chainRef], j.rule)
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
				if isEntry(p.table, r) {
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

// usedByOthers returns our chains that rules of others go to, and the first chain
// that has such a rule.
func usedByOthers(saved map[chainRef]*ipt.Chain) map[chainRef]string {
	used := map[chainRef]string{}
	for p, c := range saved {
		if owns(p.table, p.chain) {
			continue
		}
		for _, r := range c.Rules {
			to := chainRef{p.table, ipt.Target(r)}
			if owns(to.table, to.chain) && !(c.Policy != "" && isEntry(p.table, r)) && (used[to] == "" || p.chain < used[to]) {
				used[to] = p.chain
			}
		}
	}
	return used
}

// sweep removes chains that are not wanted. One that a chain of somebody else
// leads to cannot go; it is emptied.
func (m *mending) sweep() {
	used := usedByOthers(m.saved)
	own := make(map[chainRef]bool, len(m.want.own))
	for _, c := range m.want.own {
		own[c.chainRef] = true
	}
	for p, c := range m.saved {
		_, constant := m.want.constants[p]
		switch {
		case !owns(p.table, p.chain) || constant || own[p]:
		case used[p] == "":
			m.remove(p)
		case len(c.Rules) > 0:
			m.chain(p)
		}
	}
}

package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// Apply writes the difference that a step makes, in one restore per family. It
// lists nothing, unless a row is refused: then tables may have been written in
// part, and the kernel is brought to the step without that row.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	if d.node == nil {
		return nil, fmt.Errorf("apply before the first sync: %w", proxy.ErrNeedSync)
	}
	delta := changed.Delta(want, func(k proxy.PortKey) *proxy.ServicePort { return d.rows[k] },
		func(k proxy.HealthCheckKey) *proxy.HealthCheck { return d.checks[k] })
	next := d.after(delta)
	if delta.Node != nil {
		next.guard = d.localnet.Guard(ctx, delta.Node.OpensLoopback())
	}
	written := false
	for _, f := range d.families {
		s := d.step(f, delta, next)
		wrote, err := f.restore(ctx, s)
		written = written || wrote
		var refused *ipt.RestoreError
		switch {
		case errors.As(err, &refused):
			return d.converge(ctx, next, d.rows)
		case errors.Is(err, ipt.ErrLocked) && !written:
			return nil, err
		case err != nil:
			d.node = nil
			return nil, fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
		}
		if wrote {
			d.report(f, s)
		}
	}
	d.take(ctx, next)
	return nil, nil
}

// after returns the state after a step. Rows are shared until it is taken, so
// that a step costs what it changes.
func (d *Dataplane) after(delta *proxy.Delta) *next {
	n := &next{delta: delta, node: d.node, cidrs: d.cidrs, guard: d.guard}
	if delta.Node != nil {
		n.node = delta.Node
	}
	if delta.CIDRs != nil {
		n.cidrs = *delta.CIDRs
	}
	return n
}

// next is the state after a step.
type next struct {
	delta *proxy.Delta
	node  *proxy.Node
	cidrs []netip.Prefix
	guard localnet.Guard
}

// take remembers that the kernel has taken a step.
func (d *Dataplane) take(ctx context.Context, n *next) {
	s := &proxy.State{Rows: d.rows, HealthChecks: d.checks, Node: d.node, CIDRs: d.cidrs}
	s.Apply(n.delta)
	d.node, d.cidrs, d.checks = s.Node, s.CIDRs, s.HealthChecks
	if d.guard = n.guard; n.delta.Node != nil {
		d.localnet.Open(ctx)
	}
}

// step renders the rows of a step and takes the differences.
func (d *Dataplane) step(f *family, delta *proxy.Delta, n *next) *script {
	s := newScript()
	was, is := newNodeMatches(f, d.node, d.cidrs, d.guard), newNodeMatches(f, n.node, n.cidrs, n.guard)
	if !was.same(is) {
		s.constants(d.constants(was), d.constants(is))
	}
	changed := map[proxy.PortKey]bool{}
	row := func(key proxy.PortKey, cur *proxy.ServicePort) {
		if key.Family == f.Family {
			changed[key] = true
			s.owner = &key
			s.difference(was.render(d.rows[key]), is.render(cur))
			s.owner = nil
		}
	}
	for _, r := range delta.Removes {
		row(r.Key, nil)
	}
	for _, u := range delta.Upserts {
		row(u.New.Key, u.New)
	}
	for _, c := range delta.HealthChecks {
		if c.Key().Family == f.Family {
			was, is := &rendering{shared: checkLines(d.checks[c.Key()])}, &rendering{shared: checkLines(c.New)}
			s.difference(was, is)
		}
	}
	if was.same(is) {
		return s
	}
	for key, sp := range d.rows {
		if !changed[key] {
			row(key, sp)
		}
	}
	return s
}

// checkLines returns the rules of a health check, which the node's own firewall
// might close.
func checkLines(h *proxy.HealthCheck) []line {
	if h == nil {
		return nil
	}
	return []line{{nodePortFilter, fmt.Sprintf("-p tcp %s-m tcp --dport %d -j ACCEPT",
		comment(h.Key.Namespace+"/"+h.Key.Name+" health check node port"), h.Port)}}
}

// difference writes what makes one rendering the other.
func (s *script) difference(was, is *rendering) {
	s.had = was.had
	was.count(s.uses, -1)
	is.count(s.uses, 1)
	for _, name := range is.names {
		if old, ok := was.chains[name]; !ok || !slices.Equal(old, is.chains[name]) {
			s.rewrite(chainRef{nat, name}, is.chains[name])
		}
	}
	for _, name := range was.names {
		if _, ok := is.chains[name]; !ok {
			s.remove(chainRef{nat, name})
		}
	}
	s.growth[nat] += is.ownRules() - was.ownRules()
	s.lines(was.shared, is.shared)
}

// lines writes what makes one list of rules in shared chains the other.
func (s *script) lines(was, is []line) {
	for _, l := range is {
		s.growth[l.table]++
	}
	for _, l := range was {
		s.growth[l.table]--
		if !slices.Contains(is, l) {
			s.delete(l.chainRef, l.rule)
		}
	}
	for _, l := range is {
		switch {
		case slices.Contains(was, l):
		case l.first():
			s.insert(l.chainRef, l.rule)
		default:
			s.append(l.chainRef, l.rule)
		}
	}
}

// constants writes what makes one set of constant rules the other. In chains
// that rows share only the constant rules are changed.
func (s *script) constants(was, is map[chainRef][]string) {
	s.had = func(p chainRef) int { return len(was[p]) }
	for p, rules := range is {
		s.growth[p.table] += len(rules) - len(was[p])
		s.uses.chain(p, was[p], -1)
		s.uses.chain(p, rules, 1)
		switch {
		case slices.Equal(was[p], rules):
		case !slices.Contains(sharedChains(), p):
			s.rewrite(p, rules)
		default:
			for _, r := range was[p] {
				s.delete(p, r)
			}
			for i, r := range rules {
				if p.first() {
					s.append(p, r)
				} else {
					s.insert(p, rules[len(rules)-1-i])
				}
			}
		}
	}
}

// converge brings the kernel to the state after a step whatever it has now.
// A row that is refused stays in its earlier form.
func (d *Dataplane) converge(ctx context.Context, n *next, before map[proxy.PortKey]*proxy.ServicePort) (proxy.Refused, error) {
	s := &proxy.State{Rows: maps.Clone(before), HealthChecks: maps.Clone(d.checks), Node: n.node, CIDRs: n.cidrs}
	s.Apply(n.delta)
	refused, err := d.reach(ctx, s, before)
	if err != nil {
		err = fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	return refused, err
}

package iptables

import (
	"context"
	"slices"
	"strings"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// guardComment begins the comment of a loopback guard, a rule that keeps other hosts from
// loopback addresses. It is kube-proxy's, whose guard is in KUBE-FIREWALL. Ours is in
// KUBE-NODEPORTS, and its comment may continue with the note of package localnet.
const guardComment = "block incoming localnet connections"

// kubeletFirewall is a chain of the kubelet in table filter.
const kubeletFirewall = "KUBE-FIREWALL"

// loopbackGuard returns the guard. It recognises packets of other hosts by the link they
// arrive on; kube-proxy's guard uses the source address, which can be forged.
func loopbackGuard(g localnet.Guard) string {
	return "-d 127.0.0.0/8 ! -i lo " + comment(g.Comment(guardComment)) +
		"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
}

func isGuard(rule string) bool { return strings.Contains(rule, `"`+guardComment) }

// KeepsLoopback reports whether this dataplane manages route_localnet, so that a clean-up
// of other modes must not. It is safe for concurrent use.
func (d *Dataplane) KeepsLoopback() bool { return d.localnet.OwnerKnown() }

// loopbackState is what the IPv4 tables show about route_localnet.
type loopbackState struct {
	localnet.Traces
	guard  string // our guard; empty if there is none
	others bool   // kubelet's guard is in force, which we never remove
}

func loopbackOf(saved map[chainRef]*ipt.Chain) (l loopbackState) {
	find := func(p chainRef, is func(rule string) bool) string {
		if c := saved[p]; c != nil {
			if i := slices.IndexFunc(c.Rules, is); i >= 0 {
				return c.Rules[i]
			}
		}
		return ""
	}
	toKubelet := func(rule string) bool { return ipt.Target(rule) == kubeletFirewall }
	counts := func(rule string) bool { return strings.Contains(rule, localhostAccepted.comment) }
	l.guard = find(nodePortFilter, isGuard)
	l.others = find(chainRef{filter, kubeletFirewall}, isGuard) != "" && find(chainRef{filter, "INPUT"}, toKubelet) != ""
	// kube-proxy opens loopback addresses by default and leaves no note. Our own chains
	// exist whether or not they are open, so they do not count.
	kubeProxys := saved[dispatchPort] != nil && saved[chainRef{nat, kubeMarkOther}] == nil
	l.Traces = localnet.Traces{
		Guarded: l.guard != "", Noted: localnet.Noted(l.guard),
		Proxied: kubeProxys || find(localhostAccepted.chainRef, counts) != "",
	}
	return l
}

// Prepare implements Prepare of [mode.Mode].
func Prepare(ctx context.Context, s mode.Settings, opens bool) error {
	d, err := Open(ctx, s)
	if err != nil {
		return err
	}
	return d.prepare(ctx, opens)
}

func (d *Dataplane) prepare(ctx context.Context, opens bool) error {
	i := slices.IndexFunc(d.families, func(f *family) bool { return f.Family == proxy.IPv4 })
	if i < 0 {
		return nil
	}
	programs := d.families[i].programs
	tables, err := programs.Save(ctx)
	if err != nil {
		return err
	}
	saved := indexChains(tables)
	if err := findUnlisted(ctx, programs, tables, saved, map[chainRef][]string{
		{filter, "INPUT"}: {toNodePortFilter},
		nodePortFilter:    {loopbackGuard(localnet.Guard{Noted: true}), loopbackGuard(localnet.Guard{})},
	}); err != nil {
		return err
	}
	return d.localnet.Prepare(ctx, loopbackOf(saved).Traces, opens, func(guard localnet.Guard) error {
		if lines := script(guarding(saved, loopbackGuard(guard))); len(lines) > 0 {
			return programs.Restore(ctx, text(lines))
		}
		return nil
	})
}

// guarding returns the changes that add the guard and the jump to it, as far as they are
// missing. It replaces a guard that differs.
func guarding(saved map[chainRef]*ipt.Chain, guard string) (out []*change) {
	for p, rule := range map[chainRef]string{nodePortFilter: guard, {filter, "INPUT"}: toNodePortFilter} {
		c := &change{ID: id{chainRef: p}, New: value{rules: []string{rule}}, Has: true}
		if chain := saved[p]; chain != nil {
			if slices.Contains(chain.Rules, rule) {
				continue
			}
			c.Had = true
			c.Old.rules = slices.DeleteFunc(slices.Clone(chain.Rules), func(r string) bool { return p != nodePortFilter || !isGuard(r) })
		}
		out = append(out, c)
	}
	return out
}

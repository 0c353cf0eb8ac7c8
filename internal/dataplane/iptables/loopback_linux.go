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

// guardComment begins the comments of rules that guard loopback: it is that of
// kube-proxy's, which is in KUBE-FIREWALL. Ours, in KUBE-NODEPORTS, may carry a
// note besides.
const guardComment = "block incoming localnet connections"

// loopbackGuard tells what comes from the wire by its link: kube-proxy's does by its
// source, which can be forged.
func loopbackGuard(g localnet.Guard) string {
	return "-d 127.0.0.0/8 ! -i lo " + comment(g.Comment(guardComment)) +
		"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
}

func isGuard(rule string) bool { return strings.Contains(rule, `"`+guardComment) }

// KeepsLoopback reports whether the setting that opens loopback is looked after
// here, whoever set it. Any goroutine may call it.
func (d *Dataplane) KeepsLoopback() bool { return d.localnet.Settled() }

// loopbackState is what tables of IPv4 tell about the setting.
type loopbackState struct {
	localnet.Traces
	guard  string // our rule; empty: there is none
	others bool   // a guard that nobody removes is in force
}

func loopbackOf(saved map[chainRef]*ipt.Chain) (l loopbackState) {
	const kubeletFirewall = "KUBE-FIREWALL"
	rule := func(p chainRef, is func(rule string) bool) string {
		if c := saved[p]; c != nil {
			if i := slices.IndexFunc(c.Rules, is); i >= 0 {
				return c.Rules[i]
			}
		}
		return ""
	}
	toKubelet := func(rule string) bool { return ipt.Target(rule) == kubeletFirewall }
	counts := func(rule string) bool { return strings.Contains(rule, localhostAccepted.comment) }
	l.guard = rule(nodePortFilter, isGuard)
	l.others = rule(chainRef{filter, kubeletFirewall}, isGuard) != "" && rule(chainRef{filter, "INPUT"}, toKubelet) != ""
	// Our own chains are there whether loopback takes NodePorts or not.
	kubeProxys := saved[dispatchPort] != nil && saved[chainRef{nat, kubeMarkOther}] == nil
	l.Traces = localnet.Traces{
		Guarded: l.guard != "", Noted: localnet.Noted(l.guard),
		Proxied: kubeProxys || rule(localhostAccepted.chainRef, counts) != "",
	}
	return l
}

// Prepare opens or closes loopback as [mode.Mode] says.
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
	saved := index(tables)
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

// guarding returns what puts the guard, and the way to it, in force where they
// are not. Guards that are not as they should be go.
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

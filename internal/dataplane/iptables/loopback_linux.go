package iptables

import (
	"context"
	"errors"
	"slices"
	"strings"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// guardComment begins the comments of rules that guard loopback: it is that of
// kube-proxy's, which is in KUBE-FIREWALL. Ours, in KUBE-NODEPORTS, may carry a
// note besides.
const guardComment = "block incoming localnet connections"

// loopbackGuard returns the rule that keeps others from loopback.
func loopbackGuard(g localnet.Guard) string {
	return "! -s 127.0.0.0/8 -d 127.0.0.0/8 " + comment(g.Comment(guardComment)) +
		"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
}

// KeepsLoopback reports whether the setting that opens loopback is looked after
// here, whoever set it. Anybody may ask at any time.
func (d *Dataplane) KeepsLoopback() bool { return d.localnet.Settled() }

// loopbackState is what tables of IPv4 tell about the setting.
type loopbackState struct {
	localnet.Traces
	guard  string // our rule; empty: there is none
	others bool   // a guard that nobody removes is in force
}

func loopbackOf(tables []ipt.Table) (l loopbackState) {
	const kubeletFirewall = "KUBE-FIREWALL"
	saved := index(tables)
	rule := func(table, chain string, is func(rule string) bool) string {
		if c := saved[chainRef{table, chain}]; c != nil {
			if i := slices.IndexFunc(c.Rules, is); i >= 0 {
				return c.Rules[i]
			}
		}
		return ""
	}
	isGuard := func(rule string) bool { return strings.Contains(rule, `"`+guardComment) }
	toKubelet := func(rule string) bool { return ipt.Target(rule) == kubeletFirewall }
	l.guard = rule(filter, kubeNodePorts, isGuard)
	l.others = rule(filter, kubeletFirewall, isGuard) != "" && rule(filter, "INPUT", toKubelet) != ""
	l.Traces = localnet.Traces{Guarded: l.guard != "", Noted: localnet.Noted(l.guard), Proxied: saved[dispatchPort] != nil}
	return l
}

// Prepare opens loopback addresses to NodePorts, or closes those that a service
// proxy opened, for a daemon that may not write the host's settings. The guard
// comes before they are open, and stays for the daemon.
func Prepare(ctx context.Context, s Settings, opens bool) error {
	d, err := Open(ctx, s)
	if err != nil {
		return err
	}
	return errors.Join(d.prepare(ctx, opens), d.Close())
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
	return d.localnet.Prepare(ctx, loopbackOf(tables).Traces, opens, func(guard localnet.Guard) error {
		if lines := script(guarding(index(tables), loopbackGuard(guard))); len(lines) > 0 {
			return programs.Restore(ctx, text(lines))
		}
		return nil
	})
}

// guarding returns what puts the guard in force where it is not.
func guarding(saved map[chainRef]*ipt.Chain, guard string) (out []*change) {
	if chain := saved[nodePortFilter]; chain == nil || !slices.Contains(chain.Rules, guard) {
		c := &change{ID: id{chainRef: nodePortFilter}, New: value{rules: []string{guard}}, Had: chain != nil, Has: true}
		if c.Had {
			c.Old.rules = slices.DeleteFunc(slices.Clone(chain.Rules), func(r string) bool { return !strings.Contains(r, `"`+guardComment) })
		}
		out = append(out, c)
	}
	for p, rules := range jumps() {
		for _, rule := range rules {
			from := saved[p]
			if p.table == filter && ipt.Target(rule) == kubeNodePorts && (from == nil || !slices.Contains(from.Rules, rule)) {
				out = append(out, &change{ID: id{chainRef: p}, New: value{rules: []string{rule}}, Has: true})
			}
		}
	}
	return out
}

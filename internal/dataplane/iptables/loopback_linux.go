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
	guard   string // our rule; empty: there is none
	noted   bool   // it has the note
	proxied bool   // a service proxy that opens loopback was here
	others  bool   // a guard that nobody removes is in force
}

func loopbackOf(tables []ipt.Table) loopbackState {
	const kubeletFirewall = "KUBE-FIREWALL"
	var l loopbackState
	saved := index(tables)
	_, l.proxied = saved[dispatchPort]
	isGuard := func(rule string) bool { return strings.Contains(rule, `"`+guardComment) }
	if c := saved[nodePortFilter]; c != nil {
		if i := slices.IndexFunc(c.Rules, isGuard); i >= 0 {
			l.guard, l.noted = c.Rules[i], localnet.Noted(c.Rules[i])
		}
	}
	input, firewall := saved[chainRef{filter, "INPUT"}], saved[chainRef{filter, kubeletFirewall}]
	l.others = input != nil && firewall != nil && slices.ContainsFunc(firewall.Rules, isGuard) &&
		slices.ContainsFunc(input.Rules, func(rule string) bool { return ipt.Target(rule) == kubeletFirewall })
	return l
}

func (l loopbackState) and(o loopbackState) loopbackState {
	if l.guard == "" {
		l.guard, l.noted = o.guard, o.noted
	}
	return loopbackState{l.guard, l.noted, l.proxied || o.proxied, l.others || o.others}
}

func (l loopbackState) traces() localnet.Traces {
	return localnet.Traces{Guarded: l.guard != "", Noted: l.noted, Proxied: l.proxied}
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
	return d.localnet.Prepare(ctx, loopbackOf(tables).traces(), opens, func(guard localnet.Guard) error {
		lines := guardLines(index(tables), guard)
		if len(lines) == 0 {
			return nil
		}
		return programs.Restore(ctx, []byte("*"+filter+"\n"+strings.Join(lines, "\n")+"\nCOMMIT\n"))
	})
}

// guardLines returns what puts the guard in force where it is not.
func guardLines(saved map[chainRef]*ipt.Chain, guard localnet.Guard) []string {
	var lines []string
	chain, want := saved[nodePortFilter], loopbackGuard(guard)
	if chain == nil {
		// Of a chain that is there this line would take the rules away.
		lines = append(lines, declaration(nodePortFilter))
		chain = &ipt.Chain{}
	}
	if !slices.Contains(chain.Rules, want) {
		lines = append(lines, "-I "+kubeNodePorts+" "+want)
		if other := loopbackGuard(localnet.Guard{Noted: !guard.Noted}); slices.Contains(chain.Rules, other) {
			lines = append(lines, "-D "+kubeNodePorts+" "+other)
		}
	}
	for p, rules := range jumps() {
		for _, rule := range rules {
			from := saved[p]
			if p.table == filter && ipt.Target(rule) == kubeNodePorts && (from == nil || !slices.Contains(from.Rules, rule)) {
				lines = append(lines, "-I "+p.chain+" "+rule)
			}
		}
	}
	return lines
}

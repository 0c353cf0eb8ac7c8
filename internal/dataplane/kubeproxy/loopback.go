package kubeproxy

import (
	"context"
	"errors"
	"slices"
	"strings"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/ipt"
)

// GuardComment begins the comments of rules that guard loopback: it is that of
// kube-proxy's, which is in KUBE-FIREWALL. That of our iptables mode, in
// KUBE-NODEPORTS, may carry a note besides.
const GuardComment = "block incoming localnet connections"

// guardChain is where our iptables mode has its guard.
const guardChain = "KUBE-NODEPORTS"

// loopback is what tables of IPv4 tell about the setting.
type loopback struct {
	guard   string // our rule; empty: there is none
	noted   bool   // it has the note
	proxied bool   // a service proxy that opens loopback was here
	others  bool   // a guard that nobody removes is in force
}

func loopbackOf(tables []ipt.Table) loopback {
	var l loopback
	entered, guarded := false, false // KUBE-FIREWALL
	for _, t := range tables {
		for _, c := range t.Chains {
			l.proxied = l.proxied || t.Name == "nat" && c.Name == guardChain
			for _, rule := range c.Rules {
				guard := strings.Contains(rule, `"`+GuardComment)
				switch {
				case t.Name != "filter":
				case c.Name == guardChain && guard:
					l.guard, l.noted = rule, localnet.Noted(rule)
				case c.Name == "KUBE-FIREWALL" && guard:
					guarded = true
				case c.Name == "INPUT" && ipt.Target(rule) == "KUBE-FIREWALL":
					entered = true
				}
			}
		}
	}
	l.others = entered && guarded
	return l
}

func (l loopback) and(o loopback) loopback {
	if l.guard == "" {
		l.guard, l.noted = o.guard, o.noted
	}
	return loopback{l.guard, l.noted, l.proxied || o.proxied, l.others || o.others}
}

func (l loopback) traces() localnet.Traces {
	return localnet.Traces{Guarded: l.guard != "", Noted: l.noted, Proxied: l.proxied}
}

// TracesOf returns what tables of IPv4 tell about who opened loopback.
func TracesOf(tables []ipt.Table) localnet.Traces { return loopbackOf(tables).traces() }

// Traces returns what kube-proxy and our iptables mode left that tells who
// opened loopback, in all variants but those that the caller has looked at.
func Traces(ctx context.Context, but ...ipt.Variant) (localnet.Traces, error) {
	h, err := open()
	if err != nil {
		return localnet.Traces{}, err
	}
	defer h.nft.Close()
	return h.traces(ctx, but...)
}

func (h *host) traces(ctx context.Context, but ...ipt.Variant) (found localnet.Traces, err error) {
	for _, v := range ipt.Variants() {
		if slices.Contains(but, v) {
			continue
		}
		rules, failed := h.findRules(ctx, ipt.IPv4, v)
		err = errors.Join(err, failed)
		for _, r := range rules {
			found = found.And(r.loopback.traces())
		}
	}
	return found, err
}

// closeLoopback puts the setting back before its guard goes. If it cannot be
// changed, our guard stays.
func (h *host) closeLoopback(rules []Rules) (removed []string, err error) {
	var all loopback
	for _, r := range rules {
		all = all.and(r.loopback)
	}
	if !all.traces().Opened() {
		return nil, nil
	}
	done, err := localnet.PutBack(h.sysctls)
	switch {
	case err == nil && done != "":
		return []string{done}, nil
	case err != nil && (!all.others || all.guard != ""):
		for i := range rules {
			rules[i].keepGuard()
		}
		return nil, err
	}
	return nil, nil
}

// keepGuard leaves our guard, and the way to it, of all that would be removed.
func (r *Rules) keepGuard() {
	if r.Table != "filter" || r.loopback.guard == "" {
		return
	}
	r.kept = r.loopback.guard
	r.Chains = without(r.Chains, func(c string) bool { return c == guardChain })
	r.Jumps = without(r.Jumps, func(j Jump) bool { return ipt.Target(j.Rule) == guardChain })
}

func without[T any](all []T, drop func(T) bool) []T {
	var out []T
	for _, one := range all {
		if !drop(one) {
			out = append(out, one)
		}
	}
	return out
}

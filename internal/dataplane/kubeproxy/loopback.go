package kubeproxy

import (
	"fmt"
	"strings"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl"
)

// RouteLocalnet lets packets with loopback addresses pass between the host's
// links, by which NodePorts of 127.0.0.1 reach endpoints. Where it is 1 and no
// rule guards loopback, neighbours of the host reach what listens there.
const RouteLocalnet = "net/ipv4/conf/all/route_localnet"

// The comments of rules that guard loopback: kube-proxy's, which is in
// KUBE-FIREWALL, and that of our iptables mode in KUBE-NODEPORTS, which has
// either. The longer one is the note that the setting goes when the rule goes.
const (
	GuardComment    = "block incoming localnet connections"
	OwnGuardComment = GuardComment + ", route_localnet is 1 because of this proxy"
)

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
					l.guard, l.noted = rule, strings.Contains(rule, OwnGuardComment)
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

// opened reports whether a service proxy set the setting: our note says so, or
// kube-proxy was here, which leaves none. Our guard without the note says that
// it was set before.
func (l loopback) opened() bool { return l.noted || l.guard == "" && l.proxied }

// OpenedLoopback reports whether it was a service proxy that set RouteLocalnet,
// by what it left in tables of IPv4.
func OpenedLoopback(tables []ipt.Table) bool { return loopbackOf(tables).opened() }

// closeLoopback puts the setting back before its guard goes. If it cannot be
// changed, our guard stays.
func (h *host) closeLoopback(rules []Rules) (removed []string, err error) {
	var all loopback
	for _, r := range rules {
		all = all.and(r.loopback)
	}
	on, err := sysctl.ReadInt(h.sysctls, RouteLocalnet)
	if err != nil || on != 1 || !all.opened() {
		return nil, nil // what cannot be read is not there
	}
	if err := h.sysctls.Write(RouteLocalnet, "0"); err == nil {
		return []string{"net.ipv4.conf.all.route_localnet=1, which a service proxy had set"}, nil
	} else if !all.others || all.guard != "" {
		for i := range rules {
			rules[i].keepGuard()
		}
		return nil, fmt.Errorf("net.ipv4.conf.all.route_localnet stays 1, set it to 0 on the host or its neighbours may reach loopback: %w", err)
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

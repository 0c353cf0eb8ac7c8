package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// firewall looks at the rules of a host that this mode can override and no other can. A
// packet that a rule of chain FORWARD or INPUT drops is lost, whatever another table
// accepts; only a rule of that chain, before the other, keeps it alive.
type firewall struct {
	settings   mode.Settings
	generation uint32 // of nf_tables at the last look; 0: there was none
	last       mode.Need
}

// Needs implements Needs of [mode.Mode].
func Needs(s mode.Settings) func(context.Context) (mode.Need, error) {
	return (&firewall{settings: s}).look
}

// look returns why the host needs this mode. It writes nothing. It reads nothing, either, if
// only nf_tables has rules and they are those of the last look; and it runs programs only if
// some rule drops.
func (w *firewall) look(ctx context.Context) (mode.Need, error) {
	generation, err := ipt.Generation()
	if err == nil && generation == w.generation && !w.legacy() {
		return w.last, nil
	}
	need, err := w.read(ctx)
	if w.generation, w.last = generation, need; err != nil {
		w.generation = 0 // look again
	}
	return need, err
}

// legacy reports whether there may be legacy tables, which have no generation.
func (w *firewall) legacy() bool {
	return slices.ContainsFunc(w.settings.Served(), func(f proxy.Family) bool {
		tables, err := ipt.LegacyTables(iptFamily(f))
		return err != nil || len(tables) > 0
	})
}

// read returns why the rules of the variant that the host uses need this mode. Rules of the
// other variant cannot be overridden, except that without programs it is not known which
// variant that is.
func (w *firewall) read(ctx context.Context) (mode.Need, error) {
	needs := map[ipt.Variant]mode.Need{}
	var failed error
	for _, v := range ipt.Variants() {
		for _, f := range w.settings.Served() {
			chains, err := ipt.Rules(ctx, iptFamily(f), v, filter)
			if failed = errors.Join(failed, err); needs[v].Why == "" {
				needs[v] = needOf(chains, ipt.Name(iptFamily(f), v))
			}
		}
	}
	if needs[ipt.NFT].Why == "" && needs[ipt.Legacy].Why == "" {
		return mode.Need{}, failed
	}
	host, err := hostVariant(ctx)
	if err != nil {
		return mode.Need{}, errors.Join(failed, err)
	}
	for _, v := range []ipt.Variant{host, ipt.NFT, ipt.Legacy} {
		_, err := ipt.Open(ctx, ipt.IPv4, v)
		if needs[v].Why != "" && (v == host || errors.Is(err, ipt.ErrMissing)) {
			return needs[v], nil
		}
	}
	return mode.Need{}, failed
}

// needOf returns why the chains of table filter need this mode.
func needOf(chains map[string]*ipt.RuleChain, tables string) mode.Need {
	for _, hook := range []struct {
		chain, traffic string
		concerns       func(ipt.Rule) bool
	}{
		{"FORWARD", "forwarded traffic of Services", func(ipt.Rule) bool { return true }},
		{"INPUT", "health checks of Services by other hosts", concernsAnyHost},
	} {
		w := &dropWalk{chains: chains, top: hook.chain, concerns: hook.concerns, seen: map[dropPath]bool{}}
		w.follow(dropPath{hook.chain, true, true})
		if w.drop != "" {
			return mode.Need{
				Why:     fmt.Sprintf("%s (%s) drops %s unless a rule before it accepts it", w.drop, tables, hook.traffic),
				Certain: hook.chain == "FORWARD" && w.certain,
			}
		}
	}
	return mode.Need{}
}

// concernsAnyHost reports whether the matches of a rule may include new connections of hosts
// that nobody has singled out. Programs that ban single hosts come and go all the time, and
// a rule for invalid packets concerns none of a load balancer.
func concernsAnyHost(r ipt.Rule) bool {
	return !slices.ContainsFunc(r.Options, func(o string) bool {
		return !slices.Contains([]string{"-i", "-o", "-p", "-d", "-m tcp", "-m multiport"}, o)
	})
}

// dropWalk follows the rules of a chain, and the chains that they lead to, in search of one
// that drops packets. Chains of service proxies and of the kubelet do not count.
type dropWalk struct {
	chains   map[string]*ipt.RuleChain
	top      string
	concerns func(ipt.Rule) bool
	seen     map[dropPath]bool // whether no packet passes the end of the chain

	drop    string // the first rule or policy that drops
	certain bool   // it drops all packets, and no rule accepts any before
	accepts bool   // a rule accepts some packets
}

// dropPath is a chain and how it is reached.
type dropPath struct {
	chain    string
	concerns bool // packets that the walk is concerned with come here
	always   bool // all packets do
}

// follow reports whether no packet passes the end of the chain.
func (w *dropWalk) follow(p dropPath) (ends bool) {
	if ends, seen := w.seen[p]; seen || w.chains[p.chain] == nil {
		return ends
	}
	w.seen[p] = false // against cycles, which the kernel does not allow
	c := w.chains[p.chain]
	for i, r := range c.Rules {
		always := len(r.Options) == 0
		next := dropPath{r.Target, p.concerns && w.concerns(r), p.always && always}
		switch stops := w.rule(i, p, next); {
		case always && r.Target == "RETURN":
			return false
		case always && stops:
			w.seen[p] = true
			return true
		}
	}
	if c.Policy == "DROP" {
		w.found(p, "policy DROP of chain "+p.chain)
	}
	return false
}

// rule reports whether a rule stops all packets that it matches.
func (w *dropWalk) rule(i int, at, next dropPath) (stops bool) {
	switch target := next.chain; {
	case target == "ACCEPT":
		w.accepts = true
		return true
	case target == "DROP", target == "REJECT":
		where := at.chain
		if where != w.top {
			where += ", which " + w.top + " leads to"
		}
		w.found(next, fmt.Sprintf("rule %d of chain %s", i+1, where))
		return true
	case owns(filter, target), target == kubeletFirewall:
		return false
	default:
		return w.follow(next)
	}
}

func (w *dropWalk) found(p dropPath, what string) {
	if !p.concerns {
		return
	}
	if w.drop == "" {
		w.drop = what
	}
	if p.always && !w.accepts && !w.certain {
		w.drop, w.certain = what, true
	}
}

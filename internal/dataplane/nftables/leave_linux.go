package nftables

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/kernel/nft"
)

const (
	priorityLateDNAT  = priorityDNAT + 5     // after every other service proxy
	priorityAfterDNAT = priorityLateDNAT + 5 // after our own translation
)

// Leave implements [proxy.Leaver]. It prepares the tables for a time without a daemon, until
// our next start or forever. Everything stays in force, but the translations of another
// proxy take precedence over ours, and once another proxy is seen to translate a
// connection to a ClusterIP, our rules do nothing any more. Otherwise our rules would stay
// in force beside the other proxy's and become outdated: endpoints that no longer exist,
// Services that had no endpoint. The next Sync undoes this. Before the first Sync, Leave does
// nothing.
func (d *Dataplane) Leave(ctx context.Context) error {
	if d.differ.Node() == nil {
		return nil
	}
	var b nft.Batch
	for _, t := range d.tables {
		other := t.otherProxy()
		b.AddSet(other)
		// The set may have the element from an earlier Leave. Deleting a missing element
		// is an error, so add it first.
		b.AddElement(other, nft.Element{Key: string(hostWord(0))})
		b.DeleteElement(other, nft.Element{Key: string(hostWord(0))})
		for _, c := range t.leaveChains(d.guard) {
			b.AddChain(t.Table, &c.Chain)
			t.rewrite(&b, c, true)
		}
	}
	if err := d.conn.Commit(ctx, &b); err != nil {
		return fmt.Errorf("make the rules yield to another proxy: %w", err)
	}
	d.differ.Forget()
	return nil
}

// otherProxy returns the set that has the element 0 once another proxy was seen.
func (t *table) otherProxy() *nft.Set {
	return &nft.Set{
		Table: t.Table, Name: "other-proxy", Key: []nft.Type{nft.Mark},
		Dynamic: true, Size: 1, Comment: "another service proxy has taken over",
	}
}

// leaveChains returns the base chains for the time without a daemon. Each of them ends if
// another proxy was seen, and translation moves to new base chains with a later priority.
// Flows to a ClusterIP have the masquerade bit set in their connection mark until it is known
// who translates them.
func (t *table) leaveChains(guard localnet.Guard) []*chain {
	var out []*chain
	first := map[uint32]*chain{ // by hook
		unix.NF_INET_PRE_ROUTING: t.baseChain(firewallPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall),
		unix.NF_INET_LOCAL_OUT:   t.baseChain(firewallOutput, "filter", unix.NF_INET_LOCAL_OUT, priorityFirewall),
	}
	for _, c := range t.guardedBaseChains(guard) {
		switch c.Hook.Priority {
		case priorityFirewall:
			first[c.Hook.Number] = c
			continue
		case priorityDNAT:
			out = append(out, t.lateChains(c)...)
			c.rules = nil
		default:
			c.rules = slices.Insert(c.rules, 0, t.acceptIfOtherProxy())
		}
		out = append(out, c)
	}
	for hook, c := range first {
		guarded := 0
		if hook == unix.NF_INET_PRE_ROUTING {
			guarded = len(t.guardRules(guard))
		}
		toService := t.matchClusterIP(t.rule().newFlow()).setFlowMark(true).comment("to be seen who translates it")
		c.rules = slices.Insert(c.rules, guarded, t.acceptIfOtherProxy(), toService)
		out = append(out, c)
	}
	return out
}

// matchClusterIP matches packets to a Service port at its ClusterIP. What other programs
// translate at other ports does not make them a service proxy.
func (t *table) matchClusterIP(r *rule) *rule {
	return r.daddr().inSet(t.clusterIPs).frontend(&t.addresses).lookup(t.addresses.dispatch)
}

// lateChains returns two chains that replace the translating base chain c. The first one
// translates, after other proxies; the kernel skips it if another proxy has translated the
// flow, and for all packets of a flow but the first. The second one detects another proxy's
// translation by the mark that the first one would have cleared.
func (t *table) lateChains(c *chain) []*chain {
	rules := append([]*nft.Rule{t.acceptIfOtherProxy(), t.matchClusterIP(t.rule()).setFlowMark(false).comment("no other proxy translates it")}, c.rules...)
	if t.overlay.OnLink { // kube-proxy's mode ipvs does not translate packets, but marks them
		rules = append([]*nft.Rule{t.rule().marked().daddrIsLocal().addZeroTo(t.otherProxy()).comment("another proxy marked it")}, rules...)
	}
	return []*chain{
		t.baseChain("late-"+c.Name, "nat", c.Hook.Number, priorityLateDNAT, rules...),
		t.baseChain("after-"+c.Name, "filter", c.Hook.Number, priorityAfterDNAT,
			t.rule().newFlow().flowMarked().firstTranslated().addZeroTo(t.otherProxy()).comment("another proxy translates it"),
			t.rule().newFlow().translated().flowMarked().setFlowMark(false).comment("it is known who translates it")),
	}
}

// acceptIfOtherProxy returns the rule that ends a chain once another proxy was seen.
func (t *table) acceptIfOtherProxy() *nft.Rule {
	return t.rule().loadZero().inSet(t.otherProxy()).accept().comment("another proxy has taken over")
}

// loadZero loads 0 with expressions that the nft program can list.
func (r *rule) loadZero() *rule { return r.meta(expr.MetaKeyMARK).bitwise(0, 0) }

// addZeroTo adds the element 0 to a set.
func (r *rule) addZeroTo(s *nft.Set) *rule {
	return r.loadZero().add(&expr.Dynset{SrcRegKey: firstRegister, SetName: s.Name, Operation: unix.NFT_DYNSET_OP_ADD}).resetRegisters()
}

// firstTranslated matches the first packet of a flow whose destination was translated:
// the flow is not confirmed yet.
func (r *rule) firstTranslated() *rule {
	return r.conntrack(expr.CtKeySTATUS).bitwise(statusConfirmed|statusDNAT, 0).eq(hostWord(statusDNAT))
}

// flowMarked matches flows whose connection mark has the masquerade bit, which
// setFlowMark sets or clears.
func (r *rule) flowMarked() *rule { return r.conntrack(expr.CtKeyMARK).hasAny(r.t.mark) }

func (r *rule) setFlowMark(on bool) *rule { return r.changeFlowMark(^r.t.mark, r.markIf(on)) }

// changeFlowMark replaces the flow's connection mark m by m & keep ^ set.
func (r *rule) changeFlowMark(keep, set uint32) *rule {
	return r.conntrack(expr.CtKeyMARK).bitwise(keep, set).
		add(&expr.Ct{Key: expr.CtKeyMARK, Register: firstRegister, SourceRegister: true}).resetRegisters()
}

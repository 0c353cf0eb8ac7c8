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
	priorityLookAfter = priorityLateDNAT + 5 // after that
)

// Leave prepares the tables for a time without us: a moment until our next
// start, or for ever. Everything stays in force, but if another proxy comes its
// translations go before ours; and once it is seen to translate a ClusterIP,
// nothing of ours does anything any more. Otherwise what we know would live on
// beside it, and go stale: endpoints that have gone, Services that have none.
// The next Sync undoes it. Before the first one there is nothing to leave.
func (d *Dataplane) Leave(ctx context.Context) error {
	if d.differ.Node() == nil {
		return nil
	}
	var b nft.Batch
	for _, t := range d.tables {
		other := t.otherProxy()
		b.AddSet(other)
		b.AddElement(other, nft.Element{Key: string(hostWord(0))}) // so that there is one to delete
		b.DeleteElement(other, nft.Element{Key: string(hostWord(0))})
		for _, c := range t.left(d.guard) {
			b.AddChain(t.Table, &c.Chain)
			t.rewrite(&b, c, true)
		}
	}
	if err := d.conn.Commit(ctx, &b); err != nil {
		return fmt.Errorf("let the rules give way to another proxy: %w", err)
	}
	d.differ.Forget()
	return nil
}

// otherProxy returns the set that has an element once another proxy was seen.
func (t *table) otherProxy() *nft.Set {
	return &nft.Set{
		Table: t.Table, Name: "other-proxy", Key: []nft.Type{nft.Mark},
		Dynamic: true, Size: 1, Comment: "another service proxy has taken over",
	}
}

// left returns the base chains for the time without us. Each looks for another
// proxy first, and the translations are in new ones. Flows to a Service by its
// ClusterIP have a bit of their mark set while it is not known who translates them.
func (t *table) left(guard localnet.Guard) []*chain {
	var out []*chain
	first := map[uint32]*chain{ // by hook
		unix.NF_INET_PRE_ROUTING: t.base(firewallPrerouting, "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall),
		unix.NF_INET_LOCAL_OUT:   t.base(firewallOutput, "filter", unix.NF_INET_LOCAL_OUT, priorityFirewall),
	}
	for _, c := range t.guardedHooks(guard) {
		switch c.Hook.Priority {
		case priorityFirewall:
			first[c.Hook.Number] = c
			continue
		case priorityDNAT:
			out = append(out, t.late(c)...)
			c.rules = nil
		default:
			c.rules = slices.Insert(c.rules, 0, t.idle())
		}
		out = append(out, c)
	}
	for hook, c := range first {
		guarded := 0
		if hook == unix.NF_INET_PRE_ROUTING {
			guarded = len(t.guard(guard))
		}
		toService := t.toClusterIP(t.rule().newFlow()).setFlowMark(true).comment("who translates it?")
		c.rules = slices.Insert(c.rules, guarded, t.idle(), toService)
		out = append(out, c)
	}
	return out
}

// toClusterIP matches packets to a Service's port at its ClusterIP. At other ports
// strangers may translate what they like.
func (t *table) toClusterIP(r *rule) *rule {
	return r.load(false).in(t.clusterIPs).frontend(&t.addresses).lookup(t.addresses.dispatch)
}

// late returns what does the work of a base chain that translates: one that
// runs after another proxy's, if that has not translated the flow, and one that
// sees whether it has. Only a flow's first packet comes to the former.
func (t *table) late(c *chain) []*chain {
	rules := append([]*nft.Rule{t.idle(), t.toClusterIP(t.rule()).setFlowMark(false).comment("no other proxy does")}, c.rules...)
	if t.over.OnLink { // kube-proxy's mode ipvs translates nothing, but marks
		rules = append([]*nft.Rule{t.rule().marked().local(false).note(t.otherProxy()).comment("another proxy marked it")}, rules...)
	}
	return []*chain{
		t.base("late-"+c.Name, "nat", c.Hook.Number, priorityLateDNAT, rules...),
		t.base("after-"+c.Name, "filter", c.Hook.Number, priorityLookAfter,
			t.rule().newFlow().flowMarked().firstTranslated().note(t.otherProxy()).comment("another proxy does"),
			t.rule().newFlow().translated().flowMarked().setFlowMark(false).comment("no more to be known")),
	}
}

// idle ends a chain once another proxy was seen.
func (t *table) idle() *nft.Rule {
	return t.rule().zero().in(t.otherProxy()).accept().comment("another proxy has taken over")
}

// zero loads it, in a way that the nft program can list.
func (r *rule) zero() *rule { return r.meta(expr.MetaKeyMARK).bits(0, 0) }

// note adds zero to a set.
func (r *rule) note(s *nft.Set) *rule {
	return r.zero().add(&expr.Dynset{SrcRegKey: firstRegister, SetName: s.Name, Operation: unix.NFT_DYNSET_OP_ADD}).done()
}

// firstTranslated matches the first packet of a flow whose destination was
// translated: the flow is not confirmed yet.
func (r *rule) firstTranslated() *rule {
	return r.conntrack(expr.CtKeySTATUS).bits(statusConfirmed|statusDNAT, 0).is(hostWord(statusDNAT))
}

// flowMarked matches flows that carry the mark, which setFlowMark sets or clears.
func (r *rule) flowMarked() *rule { return r.conntrack(expr.CtKeyMARK).has(r.t.mark) }

func (r *rule) setFlowMark(on bool) *rule { return r.changeFlowMark(^r.t.mark, r.markIf(on)) }

// changeFlowMark keeps some bits of the flow's mark and sets others.
func (r *rule) changeFlowMark(keep, set uint32) *rule {
	return r.conntrack(expr.CtKeyMARK).bits(keep, set).
		add(&expr.Ct{Key: expr.CtKeyMARK, Register: firstRegister, SourceRegister: true}).done()
}

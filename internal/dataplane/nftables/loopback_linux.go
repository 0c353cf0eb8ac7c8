package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft"
	"sluice/internal/proxy"
)

// guardComment is the start of the comment of the guard's first rule. The next daemon,
// which may be of another version, recognizes the guard by it.
const guardComment = "loopback is not for others"

// guardChain is the chain of the guard while no daemon runs and the table has nothing else.
// While one runs, the guard is in firewall-prerouting, which a mode may need anyway: each
// base chain costs every packet time.
const guardChain = "loopback-guard"

// guardRules returns the rules that drop packets from other hosts to or from loopback
// addresses. They run before replies are translated back, whose destination may rightly be a
// loopback address.
func (t *table) guardRules(g localnet.Guard) []*nft.Rule {
	if t.family == proxy.IPv6 || !g.InForce {
		return nil
	}
	return []*nft.Rule{
		t.rule().daddrIn(t.family.Loopback()).notFromLoopback().drop().comment(g.Comment(guardComment)),
		t.rule().saddrIn(t.family.Loopback()).notFromLoopback().drop().comment("no loopback sources from other hosts"),
	}
}

// addGuard adds the guard in its own chain, and the table if it does not exist.
func (t *table) addGuard(b *nft.Batch, g localnet.Guard) {
	c := t.baseChain(guardChain, "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall, t.guardRules(g)...)
	b.AddTable(t.Table)
	b.AddChain(t.Table, &c.Chain)
	t.rewrite(b, c, true)
}

// onlyGuard reports whether a table contains nothing but the chain that addGuard adds.
func onlyGuard(l *nft.Listing) bool {
	_, ok := l.Chains[guardChain]
	return ok && len(l.Chains) == 1 && len(l.Sets) == 0
}

// hasGuard reports whether a table is repairable and one of the guard's two chains starts
// with the rules of g.
func (t *table) hasGuard(l *nft.Listing, g localnet.Guard) bool {
	want := t.chain("", t.guardRules(g)...).listed()
	for _, name := range []string{firewallPrerouting, guardChain} {
		if have := l.Chains[name]; len(have) >= len(want) && slices.Equal(have[:len(want)], want) {
			return t.repairable(l)
		}
	}
	return false
}

// traces returns what the guard in a listing says about who enabled route_localnet.
func traces(l *nft.Listing) (found localnet.Traces) {
	if l == nil {
		return found
	}
	for _, rules := range l.Chains {
		for _, r := range rules {
			if strings.HasPrefix(r.Comment, guardComment) {
				found = found.And(localnet.Traces{Guarded: true, Noted: localnet.Noted(r.Comment)})
			}
		}
	}
	return found
}

// Traces returns what the guard in our table says about who enabled route_localnet.
func (o Overlay) Traces(ctx context.Context) (localnet.Traces, error) {
	conn, err := nft.Open()
	if err != nil {
		return localnet.Traces{}, explain(err)
	}
	defer conn.Close()
	l, err := listIfAny(ctx, conn, newTable(proxy.IPv4, 0, o).Table)
	return traces(l), err
}

// listIfAny lists a table. It returns nil if there is none or the kernel has no nf_tables.
func listIfAny(ctx context.Context, conn nft.Interface, t nft.Table) (*nft.Listing, error) {
	l, err := conn.List(ctx, t)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return nil, nil
	case err != nil:
		return nil, explain(err)
	}
	return l, nil
}

// notFromLoopback matches packets that came in on another interface than lo.
func (r *rule) notFromLoopback() *rule { return r.meta(expr.MetaKeyIIFNAME).neq(interfaceName("lo")) }

// KeepsLoopback reports whether this dataplane manages route_localnet, whoever enabled
// it. Any goroutine may call it.
func (d *Dataplane) KeepsLoopback() bool { return d.localnet.OwnerKnown() }

// Prepare enables route_localnet if opens is true, and otherwise disables it if a service
// proxy enabled it, for a daemon that may not write sysctls. The guard of loopback addresses
// is written before route_localnet is enabled, and stays for the daemon.
func (o Overlay) Prepare(ctx context.Context, s mode.Settings, opens bool) error {
	d, err := o.Open(ctx, s)
	if err != nil {
		return err
	}
	return errors.Join(d.prepare(ctx, opens), d.Close())
}

func (d *Dataplane) prepare(ctx context.Context, opens bool) error {
	i := slices.IndexFunc(d.tables, func(t *table) bool { return t.family == proxy.IPv4 })
	if i < 0 {
		return nil
	}
	t := d.tables[i]
	l, err := d.conn.List(ctx, t.Table)
	if err != nil {
		return err
	}
	return d.localnet.Prepare(ctx, traces(l), opens, func(guard localnet.Guard) error {
		if l != nil && t.hasGuard(l, guard) {
			return nil
		}
		var b nft.Batch
		if l != nil && l.Dormant {
			b.DeleteTable(t.Table) // the guard would have no effect in it
		}
		t.addGuard(&b, guard)
		if err := d.conn.Commit(ctx, &b); err != nil {
			return fmt.Errorf("guard loopback addresses: %w", err)
		}
		return nil
	})
}

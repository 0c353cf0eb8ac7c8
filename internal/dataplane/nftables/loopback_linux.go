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

const guardComment = "loopback is not for others"

// guardChain is the guard's own where there is nothing else of ours: for a time
// without a daemon. While there is one it is in firewall-prerouting, which a mode may have
// for more: a chain is what every packet must pass.
const guardChain = "loopback-guard"

// guard returns the rules that keep loopback addresses off the wire. They come
// before the translation of replies, which may well be for a loopback address.
func (t *table) guard(g localnet.Guard) []*nft.Rule {
	if t.family == proxy.IPv6 || !g.InForce {
		return nil
	}
	return []*nft.Rule{
		t.rule().within(false, t.family.Loopback()).fromWire().drop().comment(g.Comment(guardComment)),
		t.rule().within(true, t.family.Loopback()).fromWire().drop().comment("loopback is nobody else"),
	}
}

// addGuard adds the guard in a chain of its own, and the table if there is none.
func (t *table) addGuard(b *nft.Batch, g localnet.Guard) {
	c := t.base(guardChain, "filter", unix.NF_INET_PRE_ROUTING, priorityFirewall, t.guard(g)...)
	b.AddTable(t.Table)
	b.AddChain(t.Table, &c.Chain)
	t.rewrite(b, c, true)
}

// onlyGuard reports whether there is nothing in a table but a guard's own chain.
func onlyGuard(l *nft.Listing) bool {
	_, ok := l.Chains[guardChain]
	return ok && len(l.Chains) == 1 && len(l.Sets) == 0
}

// guarded reports whether a table begins with the guard where it may be.
func (t *table) guarded(l *nft.Listing, g localnet.Guard) bool {
	want := t.chain("", t.guard(g)...).listed()
	for _, name := range []string{firewallPrerouting, guardChain} {
		if have := l.Chains[name]; len(have) >= len(want) && slices.Equal(have[:len(want)], want) {
			return t.fits(l)
		}
	}
	return false
}

// traces returns what a table tells about who opened loopback.
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

// Traces returns what our table tells about who opened loopback.
func (o Overlay) Traces(ctx context.Context) (localnet.Traces, error) {
	conn, err := nft.Open()
	if err != nil {
		return localnet.Traces{}, explain(err)
	}
	defer conn.Close()
	l, err := listIfAny(ctx, conn, newTable(proxy.IPv4, 0, o).Table)
	return traces(l), err
}

// listIfAny lists a table; nil if there is none or the kernel has no nf_tables.
func listIfAny(ctx context.Context, conn nft.Interface, t nft.Table) (*nft.Listing, error) {
	l, err := conn.List(ctx, t)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for %v: %w", t, explain(err))
	}
	return l, nil
}

// fromWire matches what came in on another link than loopback.
func (r *rule) fromWire() *rule { return r.meta(expr.MetaKeyIIFNAME).isNot(interfaceName("lo")) }

// KeepsLoopback reports whether the setting that opens loopback is looked after
// here, whoever set it. Anybody may ask at any time.
func (d *Dataplane) KeepsLoopback() bool { return d.localnet.OwnerKnown() }

// Prepare opens loopback addresses to NodePorts, or closes those that a service
// proxy opened, for a daemon that may not write the host's settings. The guard
// comes before they are open, and stays for the daemon.
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
		if l != nil && t.guarded(l, guard) {
			return nil
		}
		var b nft.Batch
		if l != nil && l.Dormant {
			b.DeleteTable(t.Table) // nothing of it is in force
		}
		t.addGuard(&b, guard)
		if err := d.conn.Commit(ctx, &b); err != nil {
			return fmt.Errorf("guard loopback addresses: %w", err)
		}
		return nil
	})
}

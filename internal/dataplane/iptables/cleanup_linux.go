package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"sluice/internal/dataplane/differ"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipset"
	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// Cleanup removes, in both variants, our chains, those of kube-proxy's iptables and ipvs
// modes, the jumps to them and the IP sets they refer to. If an open dataplane is of this
// mode, its variant is left alone. Empty tables stay, because they belong to no program.
// Cleanup returns a line for each table. If a service proxy set route_localnet, Cleanup
// resets it before it removes the loopback guard.
func Cleanup(ctx context.Context, _ mode.Settings, open proxy.Dataplane) (removed []string, err error) {
	var except ipt.Variant
	if own, ok := open.(*Dataplane); ok {
		except = own.variant
	}
	removed, err = realHost().cleanup(ctx, except, mode.KeepsLoopback(open))
	sets, failed := ipSets{ipset.Names, ipset.Destroy}.remove(ctx)
	return append(removed, sets...), errors.Join(err, failed)
}

// traces returns what shows whether we or kube-proxy set route_localnet, in all variants
// except one.
func traces(ctx context.Context, except ipt.Variant) (all localnet.Traces, err error) {
	found, err := realHost().findAll(ctx, except)
	for _, l := range found {
		all = all.And(l.loopback.Traces)
	}
	return all, err
}

// hostTables gives access to the tables of a host. Tests replace it.
type hostTables struct {
	open    func(context.Context, ipt.Family) (ipt.Interface, error) // the programs of the legacy variant
	uses    func(ipt.Family, ipt.Variant) (ipt.Uses, error)
	sysctls sysctl.Interface
}

// realHost returns the tables of the calling thread's network namespace.
func realHost() *hostTables {
	open := func(ctx context.Context, f ipt.Family) (ipt.Interface, error) {
		if err := ipt.LegacyPermission(); err != nil {
			return nil, err
		}
		return ipt.Open(ctx, f, ipt.Legacy)
	}
	return &hostTables{open: open, uses: ipt.CountUses, sysctls: sysctl.Kernel{}}
}

// leftovers is what the tables of one family and variant contain, if chains of ours are
// among it. The nft variant is read and written by netlink, so that it needs no programs and
// other programs' rules in the same tables do not matter.
type leftovers struct {
	name     string // of the family and variant
	family   ipt.Family
	variant  ipt.Variant
	programs ipt.Interface               // of the legacy variant
	rules    map[chainRef]*ipt.RuleChain // of the nft variant
	tables   []string
	saved    map[chainRef]*ipt.Chain // with abridged rules in the nft variant
	loopback loopbackState           // zero for IPv6
}

// findAll returns the leftovers of both families, in all variants except one.
func (h *hostTables) findAll(ctx context.Context, except ipt.Variant) (found []*leftovers, err error) {
	for _, v := range ipt.Variants() {
		for _, f := range ipt.Families() {
			if v == except {
				continue
			}
			l, failed := h.find(ctx, f, v)
			if err = errors.Join(err, failed); len(l.tables) > 0 {
				found = append(found, l)
			}
		}
	}
	return found, err
}

// find returns the leftovers of one family and variant. It is an error that programs are
// not installed only if there is something for them to remove.
func (h *hostTables) find(ctx context.Context, f ipt.Family, v ipt.Variant) (*leftovers, error) {
	l := &leftovers{name: ipt.Name(f, v), family: f, variant: v}
	uses, err := h.uses(f, v)
	if err != nil {
		return l, fmt.Errorf("find kube-proxy's chains: %w", err)
	}
	var withChains []string
	for _, table := range []string{nat, filter, mangle} {
		if slices.ContainsFunc(slices.Collect(maps.Keys(uses[table])), func(chain string) bool { return owns(table, chain) }) {
			withChains = append(withChains, table)
		}
	}
	if len(withChains) == 0 {
		return l, nil
	}
	if v == ipt.Legacy {
		l.programs, err = h.open(ctx, f)
	}
	if err == nil {
		err = l.read(ctx)
	}
	if err != nil {
		return l, fmt.Errorf("find kube-proxy's chains in %s of %s: %w", strings.Join(withChains, " and "), l.name, err)
	}
	if f == ipt.IPv4 {
		l.loopback = loopbackOf(l.saved)
	}
	l.tables = withChains
	return l, nil
}

// read reads all tables that may have chains of ours.
func (l *leftovers) read(ctx context.Context) error {
	if l.variant == ipt.Legacy {
		tables, err := l.programs.Save(ctx)
		l.saved = indexChains(tables)
		return err
	}
	l.rules, l.saved = map[chainRef]*ipt.RuleChain{}, map[chainRef]*ipt.Chain{}
	for _, table := range []string{nat, filter, mangle} {
		chains, err := ipt.Rules(ctx, l.family, l.variant, table)
		if err != nil {
			return err
		}
		for name, c := range chains {
			p, saved := chainRef{table, name}, &ipt.Chain{Name: name, Policy: c.Policy}
			for _, r := range c.Rules {
				saved.Rules = append(saved.Rules, r.String())
			}
			l.rules[p], l.saved[p] = c, saved
		}
	}
	return nil
}

// cleanup removes the leftovers of all variants except one. If it cannot reset
// route_localnet, it keeps the guard and returns an error, unless the only guard is
// kubelet's, which stays anyway.
func (h *hostTables) cleanup(ctx context.Context, except ipt.Variant, keepLoopback bool) (removed []string, err error) {
	found, err := h.findAll(ctx, except)
	var all loopbackState
	for _, l := range found {
		all.Traces, all.others = all.And(l.loopback.Traces), all.others || l.loopback.others
	}
	keepGuard := false
	if !keepLoopback && all.Opened() {
		done, failed := localnet.Reset(h.sysctls)
		switch {
		case failed == nil && done != "":
			removed = append(removed, done)
		case failed != nil && (all.Guarded || !all.others):
			keepGuard = true
			err = errors.Join(err, failed)
		}
	}
	for _, l := range found {
		if !keepGuard {
			l.loopback.guard = ""
		}
		for _, table := range l.tables {
			done, failed := l.remove(ctx, table)
			if err = errors.Join(err, failed); done != "" {
				removed = append(removed, done)
			}
		}
	}
	return removed, err
}

// restoreAttempts bounds how often a removal is tried. It fails if another process changes
// the table after it was saved.
const restoreAttempts = 3

// remove removes our chains from a table, except for those that other programs use and for
// a guard that is kept. It describes what it removed, or returns "" if that is nothing.
func (l *leftovers) remove(ctx context.Context, table string) (string, error) {
	where := fmt.Sprintf("table %s of %s", table, l.name)
	for attempt := 1; ; attempt++ {
		r := newRemoval(table, l.saved, l.loopback.guard)
		what := r.describe()
		if what == "" {
			return "", r.inUse(where)
		}
		err := l.apply(ctx, r)
		if err == nil {
			return where + ": " + what, r.inUse(where)
		}
		again := attempt < restoreAttempts && !errors.Is(err, ipt.ErrLocked) // the restore has waited for the lock already
		if again {
			failed := l.read(ctx)
			err, again = errors.Join(err, failed), failed == nil
		}
		if !again {
			return "", fmt.Errorf("remove kube-proxy's rules from %s: %w", where, err)
		}
	}
}

// apply makes a removal: with the nft variant in one transaction.
func (l *leftovers) apply(ctx context.Context, r *removal) error {
	if l.variant == ipt.Legacy {
		_, err := differ.New(r.mode(l)).Sync(ctx, proxy.NewState())
		return err
	}
	what := ipt.Removal{Table: r.table, Rules: map[string][]uint64{}}
	for x, v := range r.have {
		kept, keeps := r.kept[x]
		if !x.builtIn() && !keeps {
			what.Chains = append(what.Chains, x.chain)
			continue
		}
		for _, rule := range l.rules[x.chainRef].Rules {
			// A rule that takes its verdict from a map has no handle: it is not kube-proxy's.
			if text := rule.String(); rule.Handle != 0 && slices.Contains(v.rules, text) && !slices.Contains(kept.rules, text) {
				what.Rules[x.chain] = append(what.Rules[x.chain], rule.Handle)
			}
		}
	}
	return ipt.Remove(ctx, l.family, what)
}

// removal removes our chains from a table: all of have except for kept.
type removal struct {
	table      string
	have, kept map[id]value
	users      map[chainRef]string // our chains that stay because another chain, the value, jumps to them
}

// newRemoval finds our chains in a table. A chain that another program jumps to stays as it
// is, and with it all chains that it leads to, because removing them would change what that
// program does. A guard that is not empty stays, and the jump to it.
func newRemoval(table string, all map[chainRef]*ipt.Chain, guard string) *removal {
	saved := maps.Clone(all)
	maps.DeleteFunc(saved, func(p chainRef, _ *ipt.Chain) bool { return p.table != table })
	r := &removal{table: table, have: map[id]value{}, kept: map[id]value{}, users: usedByOthers(saved)}
	var follow func(chainRef)
	follow = func(from chainRef) {
		for _, rule := range saved[from].Rules {
			to := chainRef{table, ipt.Target(rule)}
			if saved[to] != nil && !to.builtIn() && r.users[to] == "" {
				r.users[to] = from.chain
				follow(to)
			}
		}
	}
	for p := range maps.Clone(r.users) {
		follow(p)
	}
	guarded := chainRef{}
	if guard != "" && table == nodePortFilter.table {
		guarded = nodePortFilter
		r.kept[id{chainRef: guarded}] = value{rules: []string{guard}}
	}
	for p, c := range saved {
		v := value{rules: c.Rules, foreign: p == guarded && !slices.Equal(c.Rules, []string{guard})}
		if c.Policy != "" {
			v.rules = slices.DeleteFunc(entries(table, c), func(rule string) bool { return ipt.Target(rule) == guarded.chain })
		}
		if c.Policy != "" || !p.builtIn() && r.users[p] == "" {
			r.have[id{chainRef: p}] = v
		}
	}
	return r
}

// mode returns the Mode of a dataplane that wants only what is kept.
func (r *removal) mode(l *leftovers) differ.Mode[id, value] {
	give := func(all map[id]value, to func(id, value)) {
		for x, v := range all {
			to(x, v)
		}
	}
	return differ.Mode[id, value]{
		Constant: func(_ *proxy.State, add func(id, value)) { give(r.kept, add) },
		List: func(_ context.Context, _ *proxy.State, have func(id, value)) (func() error, bool, error) {
			give(r.have, have)
			return nil, false, nil
		},
		Same: same, Order: order, Size: size, Limit: func() int { return maxChains(l.variant) },
		Write: func(ctx context.Context, some []*change) error { return l.programs.Restore(ctx, text(script(some))) },
	}
}

// inUse returns the error that names every chain that stays, or nil.
func (r *removal) inUse(where string) (err error) {
	for _, p := range slices.SortedFunc(maps.Keys(r.users), compareChainRefs) {
		err = errors.Join(err, fmt.Errorf("remove chain %s from %s: %w: chain %s jumps to it", p.chain, where, proxy.ErrInUse, r.users[p]))
	}
	return err
}

// describe describes on one line what is removed, or returns "" if that is nothing. It only
// counts the chains of rows, because there may be tens of thousands.
func (r *removal) describe() string {
	var names []string
	jumps, rows := 0, 0
	for x, v := range r.have {
		_, kept := r.kept[x]
		switch {
		case x.builtIn():
			jumps += len(v.rules)
		case isRowChain(x.chain):
			rows++
		case !kept:
			names = append(names, x.chain)
		}
	}
	if jumps+rows+len(names) == 0 {
		return ""
	}
	parts := []string{plural(jumps, "jump")}
	if len(names) > 0 {
		slices.Sort(names)
		parts = append(parts, "chains "+strings.Join(names, ", "))
	}
	if rows > 0 {
		parts = append(parts, plural(rows, "chain")+" of Services and endpoints")
	}
	return strings.Join(parts, "; ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ipSets gives access to all IP sets. Tests replace it.
type ipSets struct {
	names   func(context.Context) ([]string, error)
	destroy func(ctx context.Context, name string) error
}

const (
	// setWait bounds how long to wait until sets are no longer in use: nf_tables may
	// release deleted rules, and the sets they refer to, a little later.
	setWait = 2 * time.Second
	setPoll = 20 * time.Millisecond
)

// remove removes the sets of kube-proxy's ipvs mode, whose chains have been removed before.
// The error names sets that are still in use.
func (k ipSets) remove(ctx context.Context) (removed []string, err error) {
	names, err := k.names(ctx)
	waiting, cancel := context.WithTimeout(ctx, setWait)
	defer cancel()
	for _, name := range slices.DeleteFunc(names, func(name string) bool { return !isKubeProxySet(name) }) {
		failed := k.destroy(ctx, name)
		for errors.Is(failed, ipset.ErrBusy) && waiting.Err() == nil {
			time.Sleep(setPoll)
			failed = k.destroy(ctx, name)
		}
		switch {
		case failed == nil:
			removed = append(removed, "IP set "+name)
		case errors.Is(failed, ipset.ErrBusy):
			err = errors.Join(err, fmt.Errorf("remove IP set %s: %w", name, proxy.ErrInUse))
		case !errors.Is(failed, syscall.ENOENT): // otherwise another process has removed it
			err = errors.Join(err, fmt.Errorf("remove IP set %s: %w", name, failed))
		}
	}
	return removed, err
}

// isKubeProxySet reports whether an IP set is kube-proxy's, by its whole name: other programs
// use the prefix, too. Names are cut off after 31 characters, the kernel's limit.
func isKubeProxySet(name string) bool {
	kinds := []string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-FW",
		"LOAD-BALANCER-LOCAL", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP",
		"NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP", "NODE-PORT-SCTP-HASH",
		"NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
	}
	return slices.ContainsFunc(kinds, func(kind string) bool {
		four, six := "KUBE-"+kind, "KUBE-6-"+kind
		return name == four || name == six[:min(len(six), 31)]
	})
}

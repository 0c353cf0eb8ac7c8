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

// Cleanup removes our chains, those of kube-proxy's iptables and ipvs modes, the
// jumps to them, in both variants, and the sets they refer to, but for what an open dataplane has made
// its own. Tables stay when they are empty: they are nobody's. It returns a line
// for each table. If a service proxy opened loopback, it is closed again before
// its guard goes.
func Cleanup(ctx context.Context, _ mode.Settings, open proxy.Dataplane) (removed []string, err error) {
	var but ipt.Variant
	if own, ok := open.(*Dataplane); ok {
		but = own.variant
	}
	removed, err = realHost().cleanup(ctx, but, mode.KeepsLoopback(open))
	sets, failed := ipSets{ipset.Names, ipset.Destroy}.remove(ctx)
	return append(removed, sets...), errors.Join(err, failed)
}

// traces returns what we and kube-proxy left that tells who opened loopback, in
// all variants but one that the caller has looked at.
func traces(ctx context.Context, but ipt.Variant) (all localnet.Traces, err error) {
	found, err := realHost().findAll(ctx, but)
	for _, l := range found {
		all = all.And(l.loopback.Traces)
	}
	return all, err
}

// hostTables is the kernel and the programs, in the calling thread's network namespace.
type hostTables struct {
	open    func(context.Context, ipt.Family, ipt.Variant) (ipt.Interface, error)
	uses    func(ipt.Family, ipt.Variant) (ipt.Uses, error)
	sysctls sysctl.Interface
}

func realHost() *hostTables {
	open := func(ctx context.Context, f ipt.Family, v ipt.Variant) (ipt.Interface, error) {
		if v == ipt.Legacy {
			if err := ipt.LegacyPermission(); err != nil {
				return nil, err
			}
		}
		return ipt.Open(ctx, f, v)
	}
	return &hostTables{open: open, uses: ipt.CountUses, sysctls: sysctl.Kernel{}}
}

// leftovers is the tables of one family and variant that have chains of ours.
type leftovers struct {
	name     string // of the family and variant
	variant  ipt.Variant
	programs ipt.Interface
	tables   []string
	saved    map[chainRef]*ipt.Chain
	loopback loopbackState // nothing for IPv6
}

// findAll looks into the tables of both families, but not of one variant.
func (h *hostTables) findAll(ctx context.Context, but ipt.Variant) (found []*leftovers, err error) {
	for _, v := range ipt.Variants() {
		for _, f := range ipt.Families() {
			if v == but {
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

// find looks into the tables. Programs that are not installed are an error only
// if there is something for them to remove.
func (h *hostTables) find(ctx context.Context, f ipt.Family, v ipt.Variant) (*leftovers, error) {
	l := &leftovers{name: ipt.Name(f, v), variant: v}
	uses, err := h.uses(f, v)
	if err != nil {
		return l, fmt.Errorf("look for kube-proxy's chains: %w", err)
	}
	var hold []string
	for _, table := range []string{nat, filter, mangle} {
		if slices.ContainsFunc(slices.Collect(maps.Keys(uses[table])), func(chain string) bool { return owns(table, chain) }) {
			hold = append(hold, table)
		}
	}
	if len(hold) == 0 {
		return l, nil
	}
	var tables []ipt.Table
	if l.programs, err = h.open(ctx, f, v); err == nil {
		tables, err = l.programs.Save(ctx)
	}
	if err != nil {
		return l, fmt.Errorf("look for kube-proxy's chains in %s: %w", strings.Join(hold, " and "), err)
	}
	if l.saved = index(tables); f == ipt.IPv4 {
		l.loopback = loopbackOf(l.saved)
	}
	for _, t := range tables {
		if !t.Unreadable {
			l.tables = append(l.tables, t.Name)
		}
	}
	for _, name := range hold {
		if !slices.Contains(l.tables, name) {
			// iptables-nft leaves out tables that hold what only the nft program can write.
			err = errors.Join(err, fmt.Errorf("read kube-proxy's chains in table %s: %s shows none of it", name, l.name))
		}
	}
	return l, err
}

func (h *hostTables) cleanup(ctx context.Context, but ipt.Variant, keepLoopback bool) (removed []string, err error) {
	found, err := h.findAll(ctx, but)
	var all loopbackState
	for _, l := range found {
		all.Traces, all.others = all.And(l.loopback.Traces), all.others || l.loopback.others
	}
	keepGuard := false
	if !keepLoopback && all.Opened() {
		done, failed := localnet.PutBack(h.sysctls)
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

// restoreAttempts bounds how often a table is looked at anew because another
// process changed it between the look and the removal.
const restoreAttempts = 3

// remove removes what of a table nobody else uses, but for a guard that is kept.
// It returns what it removed, empty if nothing.
func (l *leftovers) remove(ctx context.Context, table string) (string, error) {
	where := fmt.Sprintf("table %s of %s", table, l.name)
	for attempt := 1; ; attempt++ {
		r := newRemoval(table, l.saved, l.loopback.guard)
		what := r.describe()
		if what == "" {
			return "", r.inUse(where)
		}
		_, err := differ.New(r.mode(l)).Sync(ctx, proxy.NewState())
		if err == nil {
			return where + ": " + what, r.inUse(where)
		}
		again := attempt < restoreAttempts && !errors.Is(err, ipt.ErrLocked) // that was waited for long enough
		if again {
			tables, failed := l.programs.Save(ctx)
			l.saved = index(tables)
			err, again = errors.Join(err, failed), failed == nil
		}
		if !again {
			return "", fmt.Errorf("remove kube-proxy's rules from %s: %w", where, err)
		}
	}
}

// removal is what takes our chains out of a table: of what is there, all that is
// not kept.
type removal struct {
	there, kept map[id]value
	users       map[chainRef]string // our chains that stay, and the chain that goes to each
}

// newRemoval tells our chains of a table from others'. A chain that another
// program goes to stays as it is, and with it all it leads to, because taking it
// away would change what that program does. A guard stays, and the way to it.
func newRemoval(table string, all map[chainRef]*ipt.Chain, guard string) *removal {
	saved := maps.Clone(all)
	maps.DeleteFunc(saved, func(p chainRef, _ *ipt.Chain) bool { return p.table != table })
	r := &removal{there: map[id]value{}, kept: map[id]value{}, users: usedByOthers(saved)}
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
			r.there[id{chainRef: p}] = v
		}
	}
	return r
}

// mode is that of a dataplane that wants nothing but what is kept.
func (r *removal) mode(l *leftovers) differ.Mode[id, value] {
	give := func(all map[id]value, to func(id, value)) {
		for x, v := range all {
			to(x, v)
		}
	}
	return differ.Mode[id, value]{
		Constant: func(_ *proxy.State, add func(id, value)) { give(r.kept, add) },
		List: func(_ context.Context, _ *proxy.State, have func(id, value)) (func() error, bool, error) {
			give(r.there, have)
			return nil, false, nil
		},
		Same: same, Order: order, Size: size, Limit: func() int { return maxChains(l.variant) },
		Write: func(ctx context.Context, some []*change) error { return l.programs.Restore(ctx, text(script(some))) },
	}
}

// inUse returns an error for every chain that stays.
func (r *removal) inUse(where string) (err error) {
	for _, p := range slices.SortedFunc(maps.Keys(r.users), compareChainRefs) {
		err = errors.Join(err, fmt.Errorf("remove chain %s from %s: %w: chain %s goes to it", p.chain, where, proxy.ErrInUse, r.users[p]))
	}
	return err
}

// describe says on one line what is removed; empty if nothing is. Chains of rows
// are counted: there may be tens of thousands.
func (r *removal) describe() string {
	var names []string
	jumps, rows := 0, 0
	for x, v := range r.there {
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
	parts := []string{count(jumps, "jump")}
	if len(names) > 0 {
		slices.Sort(names)
		parts = append(parts, "chains "+strings.Join(names, ", "))
	}
	if rows > 0 {
		parts = append(parts, count(rows, "chain")+" of Services and endpoints")
	}
	return strings.Join(parts, "; ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ipSets is the kernel's IP sets, of all owners.
type ipSets struct {
	names   func(context.Context) ([]string, error)
	destroy func(ctx context.Context, name string) error
}

const (
	// setWait bounds the wait for the kernel to let go of sets: nf_tables may
	// free deleted rules, and what they refer to, a little later.
	setWait = 2 * time.Second
	setPoll = 20 * time.Millisecond
)

// remove removes the sets of kube-proxy's ipvs mode, whose chains are gone. Those
// that stay in use are named in the error.
func (k ipSets) remove(ctx context.Context) (removed []string, err error) {
	names, err := k.names(ctx)
	waiting, cancel := context.WithTimeout(ctx, setWait)
	defer cancel()
	for _, name := range slices.DeleteFunc(names, func(name string) bool { return !isSet(name) }) {
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
		case !errors.Is(failed, syscall.ENOENT): // else another process was faster
			err = errors.Join(err, fmt.Errorf("remove IP set %s: %w", name, failed))
		}
	}
	return removed, err
}

// isSet reports whether an IP set is one of kube-proxy's, by its exact name:
// others use the prefix. The kernel keeps 31 characters of a name.
func isSet(name string) bool {
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

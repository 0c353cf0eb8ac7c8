package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ipt"
	"sluice/internal/kernel/nft"
)

// ErrInUse says that something of kube-proxy's stays because somebody else
// uses it.
var ErrInUse = errors.New("in use by what is not kube-proxy's")

// Rules is what kube-proxy left in one table of iptables.
type Rules struct {
	Family  ipt.Family
	Variant ipt.Variant
	Table   string
	Jumps   []Jump   // from built-in chains to its chains
	Chains  []string // its chains that nobody else uses
	InUse   []Use    // its chains that somebody else uses

	loopback loopback // what all tables of the family and variant tell
	kept     string   // a rule of guardChain that stays
}

// Jump is a rule of a built-in chain that goes to a chain of kube-proxy's.
type Jump struct {
	From string
	Rule string // as iptables-save writes it
}

// Use is a chain of kube-proxy's that must stay, and the chain that needs it:
// one that is neither built in nor kube-proxy's, or another one that must stay.
type Use struct {
	Chain string
	By    string
}

// String names the table.
func (r *Rules) String() string {
	return fmt.Sprintf("table %s of %s", r.Table, ipt.Name(r.Family, r.Variant))
}

// list lists a table; nil if there is none or the kernel has no nf_tables.
func (h *host) list(ctx context.Context, t nft.Table) (*nft.Listing, error) {
	listing, err := h.nft.List(ctx, t)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	return listing, err
}

// findRules looks into the tables of one variant and family. Programs that are
// not installed are an error only if there may be something they would show.
func (h *host) findRules(ctx context.Context, f ipt.Family, v ipt.Variant) ([]Rules, error) {
	there, err := h.mayHold(ctx, f, v)
	if err != nil || len(there) == 0 {
		return nil, err
	}
	programs, err := h.ipt(ctx, f, v)
	if err != nil {
		return nil, fmt.Errorf("look for kube-proxy's chains in %s: %w", strings.Join(there, " and "), err)
	}
	saved, err := programs.Save(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for kube-proxy's chains in %s: %w", strings.Join(there, " and "), err)
	}
	var found []Rules
	seen := map[string]bool{}
	for i := range saved {
		r := analyse(&saved[i])
		if len(r.Chains)+len(r.InUse) == 0 {
			continue
		}
		r.Family, r.Variant = f, v
		if f == ipt.IPv4 {
			r.loopback = loopbackOf(saved)
		}
		found = append(found, r)
		seen[r.Table] = true
	}
	if v == ipt.Legacy {
		return found, nil
	}
	// iptables-nft leaves out tables that hold what only the nft program can write.
	for _, t := range there {
		if !seen[t] {
			err = errors.Join(err, fmt.Errorf("read kube-proxy's chains in table %s: %s shows none of it", t, ipt.Name(f, v)))
		}
	}
	return found, err
}

// mayHold returns the tables that hold chains of kube-proxy's as far as can be
// seen without iptables: of nf_tables those that do, of the legacy variant all
// that are in use.
func (h *host) mayHold(ctx context.Context, f ipt.Family, v ipt.Variant) ([]string, error) {
	if v == ipt.Legacy {
		inUse, err := h.legacyTables(f)
		return slices.DeleteFunc(inUse, func(t string) bool { return !slices.Contains(tables(), t) }), err
	}
	var hold []string
	for _, name := range tables() {
		listing, err := h.list(ctx, nft.Table{Family: nftFamily(f), Name: name})
		if err != nil {
			return nil, fmt.Errorf("look for kube-proxy's chains: %w", err)
		}
		if listing == nil {
			continue
		}
		for chain := range maps.Keys(listing.Chains) {
			if chainOwner(name, chain) != nobody {
				hold = append(hold, name)
				break
			}
		}
	}
	return hold, nil
}

// analyse tells kube-proxy's rules in a table from others. A chain that
// somebody else goes to stays as it is, and with it all it leads to, because
// taking it away would change what that somebody does.
func analyse(t *ipt.Table) Rules {
	r := Rules{Table: t.Name}
	chains := map[string]*ipt.Chain{} // kube-proxy's
	for i := range t.Chains {
		if chainOwner(t.Name, t.Chains[i].Name) != nobody {
			chains[t.Chains[i].Name] = &t.Chains[i]
		}
	}
	users := map[string]string{} // of chains that stay
	var visit func(by *ipt.Chain)
	visit = func(by *ipt.Chain) {
		for _, rule := range by.Rules {
			to := chains[ipt.Target(rule)]
			if to == nil || users[to.Name] != "" {
				continue
			}
			users[to.Name] = by.Name
			visit(to)
		}
	}
	for i := range t.Chains {
		c := &t.Chains[i]
		switch {
		case chains[c.Name] != nil:
		case c.Policy == "":
			visit(c)
		default:
			r.Jumps = append(r.Jumps, jumps(c, chains)...)
			visit(withoutJumps(c))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if by := users[name]; by != "" {
			r.InUse = append(r.InUse, Use{name, by})
		} else {
			r.Chains = append(r.Chains, name)
		}
	}
	return r
}

// jumps returns the rules of a built-in chain by which kube-proxy enters its chains.
func jumps(from *ipt.Chain, chains map[string]*ipt.Chain) []Jump {
	var found []Jump
	for _, rule := range from.Rules {
		if to := ipt.Target(rule); chains[to] != nil && isEntry(to) {
			found = append(found, Jump{from.Name, rule})
		}
	}
	return found
}

// withoutJumps returns a built-in chain without kube-proxy's own rules. What is
// left and goes to its chains is somebody else's.
func withoutJumps(c *ipt.Chain) *ipt.Chain {
	rest := &ipt.Chain{Name: c.Name, Policy: c.Policy}
	for _, rule := range c.Rules {
		if !isEntry(ipt.Target(rule)) {
			rest.Rules = append(rest.Rules, rule)
		}
	}
	return rest
}

// isEntry reports whether kube-proxy goes to a chain from built-in ones.
func isEntry(chain string) bool {
	return !isServiceChain(chain) && chain != "KUBE-MARK-MASQ" && chain != "KUBE-LOAD-BALANCER"
}

// maxChains is how many chains one restore removes: what iptables-nft-restore
// takes grows with the square of them, 7 s for 24,000.
const maxChains = 600

// restores returns the inputs that remove the rules: nothing goes to the chains
// any more, all chains are emptied, so that none needs another, then they go.
// If there are not too many chains, or for the legacy variant, which does not
// mind, that is a single input, all or nothing.
func (r *Rules) restores() [][]byte {
	var jumps, empty, remove []string
	if r.kept != "" {
		empty = append(empty, ":"+guardChain+" - [0:0]")
		jumps = append(jumps, "-A "+guardChain+" "+r.kept)
	}
	for _, j := range r.Jumps {
		jumps = append(jumps, "-D "+j.From+" "+j.Rule)
	}
	for _, c := range r.Chains {
		empty = append(empty, ":"+c+" - [0:0]")
		remove = append(remove, "-X "+c)
	}
	if len(r.Chains) <= maxChains || r.Variant == ipt.Legacy {
		return [][]byte{r.input(slices.Concat(empty, jumps, remove))}
	}
	if r.kept != "" { // in one transaction
		jumps, empty = append(empty[:1:1], jumps...), empty[1:]
	}
	inputs := [][]byte{r.input(jumps)}
	for _, lines := range [][]string{empty, remove} {
		for part := range slices.Chunk(lines, maxChains) {
			inputs = append(inputs, r.input(part))
		}
	}
	return inputs
}

func (r *Rules) input(lines []string) []byte {
	return []byte("*" + r.Table + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n")
}

// restoreAttempts bounds how often rules are looked at anew because somebody
// changed them between the look and the removal.
const restoreAttempts = 3

// removeRules removes what of kube-proxy's is in one table and needed by
// nobody else. It returns what it removed, empty if nothing.
func (h *host) removeRules(ctx context.Context, r *Rules) (string, error) {
	programs, err := h.ipt(ctx, r.Family, r.Variant)
	if err != nil {
		return "", fmt.Errorf("remove kube-proxy's rules from %v: %w", r, err)
	}
	now := *r
	for range restoreAttempts {
		if len(now.Jumps)+len(now.Chains) == 0 {
			return "", now.inUse()
		}
		for _, input := range now.restores() {
			if err = programs.Restore(ctx, input); err != nil {
				break
			}
		}
		if err == nil {
			return now.describe(), now.inUse()
		}
		if errors.Is(err, ipt.ErrLocked) {
			break // it has been waited for long enough
		}
		saved, again := programs.Save(ctx)
		if again != nil {
			err = errors.Join(err, again)
			break
		}
		now = Rules{Table: r.Table}
		for i := range saved {
			if saved[i].Name == r.Table {
				now = analyse(&saved[i])
			}
		}
		now.Family, now.Variant = r.Family, r.Variant
		if r.kept != "" {
			now.loopback = r.loopback
			now.keepGuard()
		}
	}
	return "", fmt.Errorf("remove kube-proxy's rules from %v: %w", r, err)
}

// inUse returns an error for every chain that stays.
func (r *Rules) inUse() error {
	var errs []error
	for _, u := range r.InUse {
		errs = append(errs, fmt.Errorf("remove chain %s from %v: %w: chain %s goes to it", u.Chain, r, ErrInUse, u.By))
	}
	return errors.Join(errs...)
}

// describe says on one line what the removal of the rules removed. Service
// chains are counted: there may be tens of thousands.
func (r *Rules) describe() string {
	var names []string
	services := 0
	for _, c := range r.Chains {
		if isServiceChain(c) {
			services++
		} else {
			names = append(names, c)
		}
	}
	parts := []string{count(len(r.Jumps), "jump")}
	if len(names) > 0 {
		parts = append(parts, "chains "+strings.Join(names, ", "))
	}
	if services > 0 {
		parts = append(parts, count(services, "chain")+" of Services and endpoints")
	}
	return fmt.Sprintf("%v: %s", r, strings.Join(parts, "; "))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

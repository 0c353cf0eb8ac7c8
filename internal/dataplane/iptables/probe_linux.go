package iptables

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// Probe returns the families whose programs are there and can write table nat.
// It makes that table where there is none, and nothing else.
func Probe(ctx context.Context, s mode.Settings) ([]proxy.Family, error) {
	v, err := permittedVariant(ctx)
	if err != nil {
		return nil, err
	}
	var can []proxy.Family
	var reason error // on one line, for it is the last one that is read
	for _, f := range s.Served() {
		switch err := probe(ctx, f, v); {
		case err == nil:
			can = append(can, f)
		case reason == nil:
			reason = fmt.Errorf("%v: %w", f, err)
		default:
			reason = fmt.Errorf("%w; %v: %w", reason, f, err)
		}
	}
	if len(can) > 0 && reason != nil {
		klog.FromContext(ctx).Error(reason, "Serving the other family only, Services of this one do not work on this node")
		reason = nil
	}
	return can, reason
}

// probe tries whether a chain can be made, in one transaction with its end. The
// answer is no if a line is refused; whatever else goes wrong, the lock that
// another process holds among it, may pass, and is what Sync tries again for.
func probe(ctx context.Context, f proxy.Family, v ipt.Variant) error {
	conn, err := ipt.Open(ctx, iptFamily(f), v)
	if err != nil {
		return err
	}
	err = conn.Restore(ctx, []byte("*"+nat+"\n"+declaration(chainRef{nat, kubeProbe})+"\n-X "+kubeProbe+"\nCOMMIT\n"))
	if _, refused := errors.AsType[*ipt.RestoreError](err); refused {
		return err
	}
	return nil
}

// Needed says why a node needs this mode though it could do another; empty if it
// does not. Where chain FORWARD drops what none of its rules accepts, Services
// live on the rules that accept their traffic there, and a rule outside of that
// very chain cannot stand in for them. It writes nothing.
func Needed(ctx context.Context, s mode.Settings) (string, error) {
	v, err := permittedVariant(ctx)
	if err != nil {
		return "", err
	}
	for _, f := range s.Served() {
		why, failed := forwardDrops(ctx, iptFamily(f), v)
		if why != "" {
			return why, nil
		}
		err = errors.Join(err, failed)
	}
	return "", err
}

func forwardDrops(ctx context.Context, f ipt.Family, v ipt.Variant) (string, error) {
	if v == ipt.Legacy {
		// Looking for a table of this variant makes one.
		if tables, err := ipt.LegacyTables(f); err != nil || len(tables) == 0 {
			return "", err
		}
	}
	conn, err := ipt.Open(ctx, f, v)
	if errors.Is(err, ipt.ErrMissing) {
		return "", nil // nobody has used them
	}
	if err != nil {
		return "", err
	}
	saved, err := conn.Save(ctx)
	if err != nil {
		return "", err
	}
	what := drops(index(saved)[chainRef{filter, "FORWARD"}])
	if what == "" {
		return "", nil
	}
	return fmt.Sprintf("%s of chain FORWARD (%s) drops forwarded traffic of Services unless a rule in it accepts it", what, ipt.Name(f, v)), nil
}

var onlyComment = regexp.MustCompile(`^-m comment --comment ("(\\.|[^"\\])*"|\S+) `)

// drops says what of a chain drops all that comes to its end; empty if nothing
// does, or there is no chain. Rules that match some packets only do not count.
func drops(c *ipt.Chain) string {
	if c == nil {
		return ""
	}
	for _, r := range c.Rules {
		switch r = onlyComment.ReplaceAllString(r, ""); {
		case r == "-j ACCEPT":
			return ""
		case r == "-j DROP", strings.HasPrefix(r, "-j REJECT"):
			return fmt.Sprintf("rule %q", r)
		}
	}
	if c.Policy == "DROP" {
		return "policy DROP"
	}
	return ""
}

// permittedVariant returns the host's variant, if this process may run its programs.
func permittedVariant(ctx context.Context) (ipt.Variant, error) {
	v, err := hostVariant(ctx)
	if err == nil && v == ipt.Legacy {
		if err = ipt.LegacyPermission(); err != nil {
			err = fmt.Errorf("the rules of this host are in iptables-legacy: %w", err)
		}
	}
	return v, err
}

// hostVariant returns the variant that others on this host use: where the
// kubelet has left its sign, else where there are more rules, else nft.
func hostVariant(ctx context.Context) (ipt.Variant, error) {
	rules, signs := map[ipt.Variant]int{}, map[ipt.Variant]int{}
	for _, v := range ipt.Variants() {
		for _, f := range ipt.Families() {
			uses, err := othersUses(ctx, f, v)
			if err != nil {
				return 0, fmt.Errorf("look whether the rules of this host are in %s: %w", ipt.Name(f, v), err)
			}
			for _, table := range uses {
				for chain, n := range table {
					rules[v] += n
					if chain == "KUBE-IPTABLES-HINT" || chain == "KUBE-KUBELET-CANARY" {
						signs[v]++
					}
				}
			}
		}
	}
	chosen, other := ipt.NFT, ipt.Legacy
	if signs[other] > signs[chosen] || signs[other] == signs[chosen] && rules[other] > rules[chosen] {
		chosen, other = other, chosen
	}
	logger := klog.FromContext(ctx)
	if rules[chosen] > 0 && rules[other] > 0 {
		logger.Info("Both variants of iptables have rules, packets pass both",
			"chosen", chosen.String(), "nftRules", rules[ipt.NFT], "legacyRules", rules[ipt.Legacy])
	}
	if _, err := ipt.Open(ctx, ipt.IPv4, chosen); !errors.Is(err, ipt.ErrMissing) || signs[chosen] > 0 {
		return chosen, nil
	}
	if _, err := ipt.Open(ctx, ipt.IPv4, other); err != nil {
		return chosen, nil
	}
	if rules[chosen] > 0 {
		logger.Info("The programs of the iptables variant that has the host's rules are not installed, took the other one",
			"chosen", other.String(), "hostRules", rules[chosen])
	}
	return other, nil
}

// othersUses counts what chains of a variant hold. Legacy tables are read without
// programs, which need capabilities that a container may lack: what cannot be
// written is there all the same. Of the others, the programs leave out tables
// that only the nft program can have written, and what cannot be read is nobody's.
func othersUses(ctx context.Context, f ipt.Family, v ipt.Variant) (ipt.Uses, error) {
	if v == ipt.Legacy {
		return ipt.CountUses(f, v)
	}
	conn, err := ipt.Open(ctx, f, v)
	if err != nil {
		return nil, nil
	}
	saved, _ := conn.Save(ctx)
	return ipt.UsesOf(saved), nil
}

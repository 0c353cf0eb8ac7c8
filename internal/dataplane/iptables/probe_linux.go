package iptables

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// Probe returns the families whose programs are installed and can write table nat. It
// creates that table if there is none, and writes nothing else.
func Probe(ctx context.Context, s mode.Settings) ([]proxy.Family, error) {
	v, err := permittedVariant(ctx)
	if err != nil {
		return nil, err
	}
	var can []proxy.Family
	var reason error // on one line: it is the last line of the log if the daemon exits
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
		klog.FromContext(ctx).Error(reason, "Serving the other family only, Services of this family do not work on this node")
		reason = nil
	}
	return can, reason
}

// probe tries to create a chain, and removes it in the same transaction. It returns an
// error if there are no programs, or if a line is refused. Any other failure, such as a
// lock that another process holds, may be temporary; Sync is retried after it.
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

// permittedVariant returns the host's variant, and an error if this process lacks the
// capabilities to run its programs.
func permittedVariant(ctx context.Context) (ipt.Variant, error) {
	v, err := hostVariant(ctx)
	if err == nil && v == ipt.Legacy {
		if err = ipt.LegacyPermission(); err != nil {
			err = fmt.Errorf("the rules of this host are in iptables-legacy: %w", err)
		}
	}
	return v, err
}

// hostVariant returns the variant that other programs on this host use: the one with
// kubelet's hint chains, otherwise the one with more rules, otherwise nft.
func hostVariant(ctx context.Context) (ipt.Variant, error) {
	rules, hints := map[ipt.Variant]int{}, map[ipt.Variant]int{}
	for _, v := range ipt.Variants() {
		for _, f := range ipt.Families() {
			uses, err := variantUses(ctx, f, v)
			if err != nil {
				return 0, fmt.Errorf("find out whether the rules of this host are in %s: %w", ipt.Name(f, v), err)
			}
			for _, table := range uses {
				for chain, n := range table {
					rules[v] += n
					if chain == "KUBE-IPTABLES-HINT" || chain == "KUBE-KUBELET-CANARY" {
						hints[v]++
					}
				}
			}
		}
	}
	chosen, other := ipt.NFT, ipt.Legacy
	if hints[other] > hints[chosen] || hints[other] == hints[chosen] && rules[other] > rules[chosen] {
		chosen, other = other, chosen
	}
	logger := klog.FromContext(ctx)
	if rules[chosen] > 0 && rules[other] > 0 {
		logger.Info("Both variants of iptables have rules, and packets pass the rules of both",
			"chosen", chosen.String(), "nftRules", rules[ipt.NFT], "legacyRules", rules[ipt.Legacy])
	}
	if _, err := ipt.Open(ctx, ipt.IPv4, chosen); !errors.Is(err, ipt.ErrMissing) || hints[chosen] > 0 {
		return chosen, nil
	}
	if _, err := ipt.Open(ctx, ipt.IPv4, other); err != nil {
		return chosen, nil
	}
	if rules[chosen] > 0 {
		logger.Info("The programs of the iptables variant that has the rules of this host are not installed, using the other variant",
			"chosen", other.String(), "hostRules", rules[chosen])
	}
	return other, nil
}

// variantUses counts the rules of a variant. Legacy tables are read without the programs,
// which need capabilities that a container may lack: rules that we cannot write count
// all the same. With the nft variant the programs are used, because they leave out tables
// that only the nft program can have written; rules that they cannot read do not count.
func variantUses(ctx context.Context, f ipt.Family, v ipt.Variant) (ipt.Uses, error) {
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

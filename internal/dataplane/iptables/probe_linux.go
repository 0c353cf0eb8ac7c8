package iptables

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// Probe returns the families whose programs are there and can write table nat.
// It makes that table where there is none, and nothing else.
func Probe(ctx context.Context, s Settings) ([]proxy.Family, error) {
	if err := s.settleVariant(ctx); err != nil {
		return nil, err
	}
	if err := s.permission(); err != nil {
		return nil, err
	}
	var can []proxy.Family
	var reasons []error
	for _, f := range s.Served() {
		if err := probe(ctx, f, s.Variant); err != nil {
			reasons = append(reasons, fmt.Errorf("%v: %w", f, err))
		} else {
			can = append(can, f)
		}
	}
	if len(can) == 0 {
		return nil, oneLine(reasons)
	}
	for _, reason := range reasons {
		klog.FromContext(ctx).Error(reason, "Serving the other family only, Services of this one do not work on this node")
	}
	return can, nil
}

// permission returns an error if this process may not run the variant's programs.
func (s *Settings) permission() error {
	if s.Variant != ipt.Legacy {
		return nil
	}
	if err := ipt.LegacyPermission(); err != nil {
		return fmt.Errorf("the rules of this host are in iptables-legacy: %w", err)
	}
	return nil
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
	var refused *ipt.RestoreError
	if errors.As(err, &refused) {
		return err
	}
	return nil
}

// oneLine joins errors, for it is the last line that is read.
func oneLine(errs []error) error {
	joined := errs[0]
	for _, e := range errs[1:] {
		joined = fmt.Errorf("%w; %w", joined, e)
	}
	return joined
}

// settleVariant chooses the variant if none is set.
func (s *Settings) settleVariant(ctx context.Context) (err error) {
	if s.Variant == 0 {
		s.Variant, err = hostVariant(ctx)
	}
	return err
}

// traces is what of a variant others use.
type traces struct {
	rules int
	signs int // of the kubelet
}

// hostVariant returns the variant that others on this host use: where the
// kubelet has left its sign, else where there are more rules, else nft.
func hostVariant(ctx context.Context) (ipt.Variant, error) {
	found := map[ipt.Variant]traces{}
	for _, v := range ipt.Variants() {
		t, err := variantTraces(ctx, v)
		if err != nil {
			return 0, err
		}
		found[v] = t
	}
	nft, legacy := found[ipt.NFT], found[ipt.Legacy]
	chosen := ipt.NFT
	if legacy.signs > nft.signs || legacy.signs == nft.signs && legacy.rules > nft.rules {
		chosen = ipt.Legacy
	}
	if nft.rules > 0 && legacy.rules > 0 {
		klog.FromContext(ctx).Info("Both variants of iptables have rules, packets pass both",
			"chosen", chosen.String(), "nftRules", nft.rules, "legacyRules", legacy.rules)
	}
	if _, err := ipt.Open(ctx, ipt.IPv4, chosen); errors.Is(err, ipt.ErrMissing) && found[chosen].signs == 0 {
		other := ipt.NFT + ipt.Legacy - chosen
		if _, err := ipt.Open(ctx, ipt.IPv4, other); err == nil {
			if found[chosen].rules > 0 {
				klog.FromContext(ctx).Info("The programs of the iptables variant that has the host's rules are not installed, took the other one",
					"chosen", other.String(), "hostRules", found[chosen].rules)
			}
			return other, nil
		}
	}
	return chosen, nil
}

// variantTraces looks at both families. Legacy tables are read without programs,
// which need capabilities that a container may lack: what cannot be written is
// there all the same. Of the others, the programs leave out tables that only the
// nft program can have written.
func variantTraces(ctx context.Context, v ipt.Variant) (t traces, err error) {
	for _, f := range ipt.Families() {
		var uses ipt.Uses
		if v == ipt.Legacy {
			if uses, err = ipt.CountUses(f, v); err != nil {
				return t, fmt.Errorf("look whether the rules of this host are in %s: %w", ipt.Name(f, v), err)
			}
		} else if conn, err := ipt.Open(ctx, f, v); err == nil {
			saved, _ := conn.Save(ctx) // what cannot be read is nobody's
			uses = ipt.UsesOf(saved)
		}
		for _, table := range uses {
			for chain, n := range table {
				t.rules += n
				if chain == "KUBE-IPTABLES-HINT" || chain == "KUBE-KUBELET-CANARY" {
					t.signs++
				}
			}
		}
	}
	return t, nil
}

package dataplane

import (
	"context"
	"errors"
	"fmt"

	"sluice/internal/config"
	"sluice/internal/dataplane/iptables"
	"sluice/internal/dataplane/ipvs"
	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// table lists the modes of this system, the best first.
func table() []Mode {
	return []Mode{
		nftablesMode(),
		iptablesMode(),
		// Its sets go after the chains that refer to them.
		{Name: config.IPVS, Cleanup: func(ctx context.Context, _ proxy.Dataplane) ([]string, error) { return ipvs.Cleanup(ctx) }},
		{Name: config.EBPF},
		{Name: config.Userspace},
	}
}

// openFlows opens connection tracking.
func openFlows() (ct.Interface, error) {
	c, err := ct.Open()
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	return c, nil
}

// keepsLoopback reports whether an open dataplane looks after the setting that
// opens loopback.
func keepsLoopback(open proxy.Dataplane) bool {
	d, ok := open.(interface{ KeepsLoopback() bool })
	return ok && d.KeepsLoopback()
}

func nftablesMode() Mode {
	settings := func(s Settings) nftables.Settings {
		return nftables.Settings{
			MarkBit: s.MasqueradeBit, Families: s.Families,
			Others: func(ctx context.Context) (localnet.Traces, error) { return iptables.Traces(ctx, 0) },
		}
	}
	return Mode{
		Name:  config.NFTables,
		Flows: openFlows,
		Probe: func(ctx context.Context, s Settings) ([]proxy.Family, error) {
			return nftables.Probe(ctx, settings(s))
		},
		Prepare: func(ctx context.Context, s Settings, opens bool) error {
			return nftables.Prepare(ctx, settings(s), opens)
		},
		Open: func(ctx context.Context, s Settings) (proxy.Dataplane, error) {
			// The concrete pointer must not become a non-nil interface on an error.
			d, err := nftables.Open(ctx, settings(s))
			if err != nil {
				return nil, err
			}
			return d, nil
		},
		Cleanup: func(ctx context.Context, open proxy.Dataplane) ([]string, error) {
			_, own := open.(*nftables.Dataplane)
			return nftables.Cleanup(ctx, nftables.Keep{Tables: own, Loopback: keepsLoopback(open)})
		},
	}
}

func iptablesMode() Mode {
	settings := func(s Settings) iptables.Settings {
		return iptables.Settings{MarkBit: s.MasqueradeBit, Families: s.Families, Others: besideIPTables}
	}
	return Mode{
		Name:  config.IPTables,
		Flows: openFlows,
		Probe: func(ctx context.Context, s Settings) ([]proxy.Family, error) {
			return iptables.Probe(ctx, settings(s))
		},
		Prepare: func(ctx context.Context, s Settings, opens bool) error {
			return iptables.Prepare(ctx, settings(s), opens)
		},
		Needed: func(ctx context.Context, s Settings) (string, error) {
			return iptables.Needed(ctx, settings(s))
		},
		Open: func(ctx context.Context, s Settings) (proxy.Dataplane, error) {
			d, err := iptables.Open(ctx, settings(s))
			if err != nil {
				return nil, err
			}
			return d, nil
		},
		Cleanup: func(ctx context.Context, open proxy.Dataplane) ([]string, error) {
			keep := iptables.Keep{Loopback: keepsLoopback(open)}
			if own, ok := open.(*iptables.Dataplane); ok {
				keep.Variant = own.Variant()
			}
			return iptables.Cleanup(ctx, keep)
		},
	}
}

// besideIPTables returns what others than the iptables mode in one variant left
// that tells who opened loopback.
func besideIPTables(ctx context.Context, own ipt.Variant) (localnet.Traces, error) {
	tables, err := nftables.Traces(ctx)
	rules, failed := iptables.Traces(ctx, own)
	return tables.And(rules), errors.Join(err, failed)
}

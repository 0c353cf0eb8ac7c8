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
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// Settings are what every mode must know before it sees a state.
type Settings struct {
	MasqueradeBit uint8          // the bit of the packet mark that asks for masquerading
	Families      []proxy.Family // which to serve

	// Wrote is told what was written, by modes that count rules; nil: nobody is.
	Wrote func(iptables.Written)

	// CleanupFailed is told of a stale chain of nftables that could not be
	// deleted; nil: nobody is.
	CleanupFailed func(proxy.Family)
}

// Mode is one way of programming the kernel.
type Mode struct {
	// Probe returns which of the families the kernel can do, changing nothing.
	// When it can do none, the error says what is missing.
	Probe func(context.Context, Settings) ([]proxy.Family, error)

	// Prepare opens loopback addresses to NodePorts, or closes those that a
	// service proxy opened, for a daemon that may not write the host's settings.
	Prepare func(ctx context.Context, s Settings, opens bool) error

	// Needed says why a host needs this mode though it could do another; empty
	// if it does not. Nil: no host does.
	Needed func(context.Context, Settings) (string, error)

	// Open returns the dataplane. The kernel does nothing new before its Sync.
	Open func(context.Context, Settings) (proxy.Dataplane, error)

	// Cleanup removes the mode's rules and what kube-proxy's mode of that name
	// left, but for what an open dataplane, of whatever mode, has made its own. It
	// returns what it removed, and goes on after an error.
	Cleanup func(ctx context.Context, open proxy.Dataplane) ([]string, error)
}

// Of returns a mode that is built.
func Of(m config.ProxyMode) (Mode, error) {
	switch m {
	case config.NFTables:
		return nftablesMode(), nil
	case config.IPTables:
		return iptablesMode(), nil
	default:
		return Mode{}, fmt.Errorf("open proxy mode %q: %w", m, m.Check())
	}
}

// Cleanup removes every rule that any mode of ours or of kube-proxy's may have
// left, but for what an open dataplane has made its own, if there is one, and
// returns what it removed. What cannot be removed is no reason to leave the rest.
func Cleanup(ctx context.Context, open proxy.Dataplane) (removed []string, err error) {
	// The sets of the ipvs mode go after the chains that refer to them.
	for _, m := range []Mode{nftablesMode(), iptablesMode(), {Cleanup: cleanupIPVS}} {
		done, failed := m.Cleanup(ctx, open)
		removed, err = append(removed, done...), errors.Join(err, failed)
	}
	return removed, err
}

// keepsLoopback reports whether an open dataplane looks after the setting that
// opens loopback.
func keepsLoopback(open proxy.Dataplane) bool {
	d, ok := open.(interface{ KeepsLoopback() bool })
	return ok && d.KeepsLoopback()
}

func cleanupIPVS(ctx context.Context, _ proxy.Dataplane) ([]string, error) { return ipvs.Cleanup(ctx) }

func nftablesMode() Mode {
	settings := func(s Settings) nftables.Settings {
		return nftables.Settings{
			MarkBit: s.MasqueradeBit, Families: s.Families, CleanupFailed: s.CleanupFailed,
			Others: func(ctx context.Context) (localnet.Traces, error) { return iptables.Traces(ctx, 0) },
		}
	}
	return Mode{
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
		return iptables.Settings{MarkBit: s.MasqueradeBit, Families: s.Families, Wrote: s.Wrote, Others: besideIPTables}
	}
	return Mode{
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

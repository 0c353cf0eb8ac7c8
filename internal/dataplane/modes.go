package dataplane

import (
	"context"
	"errors"
	"fmt"

	"sluice/internal/config"
	"sluice/internal/dataplane/iptables"
	"sluice/internal/dataplane/kubeproxy"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
)

// Settings are what every mode must know before it sees a state.
type Settings struct {
	MasqueradeBit uint8          // the bit of the packet mark that asks for masquerading
	Families      []proxy.Family // which to serve

	// Wrote is told what was written, by modes that count rules; nil: nobody is.
	Wrote func(iptables.Written)
}

// Mode is one way of programming the kernel.
type Mode struct {
	// Probe returns which of the families the kernel can do, changing nothing.
	// When it can do none, the error says what is missing.
	Probe func(context.Context, Settings) ([]proxy.Family, error)

	// Needed says why a host needs this mode though it could do another; empty
	// if it does not. Nil: no host does.
	Needed func(context.Context, Settings) (string, error)

	// Open returns the dataplane. The kernel does nothing new before its Sync.
	Open func(context.Context, Settings) (proxy.Dataplane, error)

	// TakeOver removes what our other modes and kube-proxy left, but for what
	// the dataplane has made its own. It returns what it removed.
	TakeOver func(context.Context, proxy.Dataplane) ([]string, error)
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
// left, and returns what it removed. What cannot be removed is no reason to
// leave the rest.
func Cleanup(ctx context.Context) (removed []string, err error) {
	removed, err = nftables.Cleanup(ctx)
	rest, failed := kubeproxy.Cleanup(ctx)
	return append(removed, rest...), errors.Join(err, failed, iptables.RemoveCounters())
}

func nftablesMode() Mode {
	settings := func(s Settings) nftables.Settings {
		return nftables.Settings{MarkBit: s.MasqueradeBit, Families: s.Families}
	}
	return Mode{
		Probe: func(ctx context.Context, s Settings) ([]proxy.Family, error) {
			return nftables.Probe(ctx, settings(s))
		},
		Open: func(ctx context.Context, s Settings) (proxy.Dataplane, error) {
			// The concrete pointer must not become a non-nil interface on an error.
			d, err := nftables.Open(ctx, settings(s))
			if err != nil {
				return nil, err
			}
			return d, nil
		},
		TakeOver: func(ctx context.Context, _ proxy.Dataplane) ([]string, error) {
			removed, err := kubeproxy.Cleanup(ctx) // our iptables mode has kube-proxy's names
			return removed, errors.Join(err, iptables.RemoveCounters())
		},
	}
}

func iptablesMode() Mode {
	settings := func(s Settings) iptables.Settings {
		return iptables.Settings{MarkBit: s.MasqueradeBit, Families: s.Families, Wrote: s.Wrote}
	}
	return Mode{
		Probe: func(ctx context.Context, s Settings) ([]proxy.Family, error) {
			return iptables.Probe(ctx, settings(s))
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
		TakeOver: func(ctx context.Context, d proxy.Dataplane) ([]string, error) {
			tables, err := nftables.Cleanup(ctx)
			removed, failed := kubeproxy.Cleanup(ctx, d.(*iptables.Dataplane).Variant())
			return append(tables, removed...), errors.Join(err, failed)
		},
	}
}

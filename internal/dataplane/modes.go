package dataplane

import (
	"context"
	"fmt"

	"sluice/internal/config"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
)

// Settings are what every mode must know before it sees a state.
type Settings struct {
	MasqueradeBit uint8          // the bit of the packet mark that asks for masquerading
	Families      []proxy.Family // which to serve
}

// Mode is one way of programming the kernel.
type Mode struct {
	// Probe returns which of the families the kernel can do, changing nothing.
	// When it can do none, the error says what is missing.
	Probe func(context.Context, Settings) ([]proxy.Family, error)

	// Open returns the dataplane. The kernel does nothing new before its Sync.
	Open func(context.Context, Settings) (proxy.Dataplane, error)

	// Cleanup removes every rule this mode may have left. It needs no dataplane.
	Cleanup func(context.Context) error
}

// Of returns a mode that is built.
func Of(m config.ProxyMode) (Mode, error) {
	switch m {
	case config.NFTables:
		return nftablesMode(), nil
	default:
		return Mode{}, fmt.Errorf("open proxy mode %q: %w", m, m.Check())
	}
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
		Cleanup: nftables.Cleanup,
	}
}

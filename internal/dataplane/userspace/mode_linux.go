package userspace

import (
	"context"
	"errors"
	"fmt"

	"sluice/internal/dataplane/localnet"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
)

// Settings are what a dataplane is opened with.
type Settings = mode.Settings

// overlay takes all connections to where sockets are.
func overlay(s *nftables.Sockets) nftables.Overlay {
	return nftables.Overlay{
		Table: "sluice-userspace", Sockets: s,
		Takes: func(*proxy.ServicePort, proxy.Frontend, proxy.Route) bool { return true },
	}
}

// plain is the overlay before anything listens.
func plain() nftables.Overlay {
	return overlay(&nftables.Sockets{Mark: socketMark, Own: ownMark, NAT: true, Ports: [2][2]uint16{{1, 2}, {3, 4}}})
}

// Mode is the userspace mode.
func Mode() mode.Mode {
	return mode.Mode{
		Name: "userspace", Probe: Probe, Open: mode.Opener(Open), Cleanup: Cleanup,
		Balancing: []proxy.Balancing{proxy.RoundRobin, proxy.Random, proxy.LeastConnections, proxy.SourceHash, proxy.Maglev},
		Weights:   true,
		Prepare: func(ctx context.Context, s Settings, opens bool) error {
			return nftables.PrepareOverlay(ctx, s, plain(), opens)
		},
		Traces: func(ctx context.Context) (localnet.Traces, error) { return nftables.TracesOverlay(ctx, plain()) },
	}
}

// errCarries says why the mode's rules stay.
var errCarries = errors.New("a former daemon in mode userspace still carries connections, its rules for them stay")

// Probe returns the families that the kernel can do: with rules that find
// sockets and lead to them, and with sockets that may have any address.
func Probe(ctx context.Context, s Settings) ([]proxy.Family, error) {
	can, err := nftables.ProbeOverlay(ctx, s, plain())
	if err != nil {
		return nil, fmt.Errorf("mode userspace needs nf_tables with nft_tproxy and nft_socket: %w", err)
	}
	return can, nil
}

// Cleanup removes the rules and routes of the mode, but for what an open
// dataplane has made its own. While a daemon still carries connections, it only
// takes new ones from it, and says that it must be called again.
func Cleanup(ctx context.Context, open proxy.Dataplane) (removed []string, err error) {
	if _, own := open.(*Dataplane); own {
		return nil, nil
	}
	running, err := predecessorRuns()
	if err == nil && running {
		err = errors.Join(nftables.ReduceOverlay(ctx, plain()), errCarries)
	}
	if err != nil {
		return nil, err
	}
	removed, err = nftables.CleanupOverlay(ctx, plain(), nftables.Keep{Loopback: mode.KeepsLoopback(open)})
	for _, f := range proxy.Families {
		done, failed := routingOf(f).remove()
		if err = errors.Join(err, failed); done {
			removed = append(removed, fmt.Sprintf("routing rule and route of table %d, %v", routeTable, f))
		}
	}
	return removed, err
}

package userspace

import (
	"context"
	"errors"
	"fmt"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
)

// Bits of the packet mark.
const (
	socketMark = mode.SocketMark // a socket of this host takes the packet
	ownMark    = 1 << 13         // the packet is the server's own
)

var routing = link.LocalRouting{Mark: socketMark, Table: 10270, Priority: 10270}

// overlay has rules lead all connections to sockets.
func overlay(s *nftables.Sockets) nftables.Overlay {
	s.Mark, s.Own = socketMark, ownMark
	takes := func(*proxy.ServicePort, proxy.Frontend, proxy.Route) bool { return true }
	return nftables.Overlay{Table: "sluice-userspace", Sockets: s, Takes: takes}
}

// anyPorts is the overlay before it is known where to listen.
func anyPorts() nftables.Overlay {
	return overlay(&nftables.Sockets{Ports: [2][2]uint16{{1, 2}, {3, 4}}})
}

// Mode is the userspace mode.
func Mode() mode.Mode {
	return mode.Mode{
		Name: "userspace", Probe: Probe, Open: mode.Opener(Open), Cleanup: Cleanup,
		Render:    Render,
		Balancing: []proxy.Balancing{proxy.RoundRobin, proxy.Random, proxy.LeastConnections, proxy.SourceHash, proxy.Maglev},
		Weights:   true,
		Drains:    true,
		Prepare:   anyPorts().Prepare,
		Traces:    anyPorts().Traces,
	}
}

// Probe returns the families that the kernel can do.
func Probe(ctx context.Context, s mode.Settings) ([]proxy.Family, error) {
	can, err := anyPorts().Probe(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("mode userspace needs nf_tables with nft_tproxy and nft_socket: %w", err)
	}
	return can, nil
}

// Cleanup removes the rules and routes of the mode, unless it is open. While a
// daemon still carries connections, it only takes new ones from it, and says that
// it must be called again.
func Cleanup(ctx context.Context, _ mode.Settings, open proxy.Dataplane) (removed []string, err error) {
	if _, own := open.(*Dataplane); own {
		return nil, nil
	}
	running, err := mode.RelayRuns()
	if err == nil && running {
		err = errors.Join(anyPorts().Reduce(ctx), fmt.Errorf("rules of mode userspace stay while a former daemon carries connections: %w", proxy.ErrDraining))
	}
	if err != nil {
		return nil, err
	}
	removed, err = anyPorts().Cleanup(ctx, nftables.Keep{Loopback: mode.KeepsLoopback(open)})
	for _, f := range proxy.Families {
		done, failed := routing.Remove(f == proxy.IPv6)
		if err = errors.Join(err, failed); done {
			removed = append(removed, fmt.Sprintf("routing table %d, %v", routing.Table, f))
		}
	}
	return removed, err
}

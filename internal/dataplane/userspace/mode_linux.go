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
	socketMark = mode.SocketMark // deliver the packet to a socket of this host
	ownMark    = 1 << 13         // the packet was sent by the server
)

var routing = link.LocalRouting{Mark: socketMark, Table: 10270, Priority: 10270}

// overlay returns the nftables overlay that redirects all connections to sockets.
func overlay(s *nftables.Sockets) nftables.Overlay {
	s.Mark, s.Own = socketMark, ownMark
	takes := func(*proxy.ServicePort, proxy.Frontend, proxy.Route) bool { return true }
	return nftables.Overlay{Table: "sluice-userspace", Sockets: s, Takes: takes}
}

// usualPorts returns the overlay with the ports that are used if no other process has them, for use
// before the listeners are open.
func usualPorts() nftables.Overlay {
	return overlay(&nftables.Sockets{Ports: [2][2]uint16{{firstPort, firstPort + 1}, {firstPort + 2, firstPort + 3}}})
}

// Mode returns the userspace mode.
func Mode() mode.Mode {
	return mode.Mode{
		Name: "userspace", Probe: Probe, Open: mode.Opener(Open), Cleanup: Cleanup,
		Render:    Render,
		Balancing: []proxy.Balancing{proxy.RoundRobin, proxy.Random, proxy.LeastConnections, proxy.SourceHash, proxy.Maglev},
		Weights:   true,
		Drains:    true,
		Prepare:   usualPorts().Prepare,
		Traces:    usualPorts().Traces,
	}
}

// Probe returns the families that the kernel supports.
func Probe(ctx context.Context, s mode.Settings) ([]proxy.Family, error) {
	can, err := usualPorts().Probe(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("mode userspace needs nf_tables with nft_tproxy and nft_socket: %w", err)
	}
	return can, nil
}

// Cleanup removes the rules and routes of the mode, unless the open dataplane is of this mode.
// While a daemon still relays connections, it only stops new ones from reaching that daemon, and
// returns an error that wraps proxy.ErrDraining: it must be called again.
func Cleanup(ctx context.Context, _ mode.Settings, open proxy.Dataplane) (removed []string, err error) {
	if _, own := open.(*Dataplane); own {
		return nil, nil
	}
	running, err := mode.RelayRuns()
	if err == nil && running {
		err = errors.Join(usualPorts().Reduce(ctx), fmt.Errorf("keep the rules of mode userspace, because a former daemon still relays connections: %w", proxy.ErrDraining))
	}
	if err != nil {
		return nil, err
	}
	removed, err = usualPorts().Cleanup(ctx, nftables.Keep{Loopback: mode.KeepsLoopback(open)})
	for _, f := range proxy.Families {
		done, failed := routing.Remove(f == proxy.IPv6)
		if err = errors.Join(err, failed); done {
			removed = append(removed, fmt.Sprintf("routing table %d, %v", routing.Table, f))
		}
	}
	return removed, err
}

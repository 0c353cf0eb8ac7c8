package app

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/iptables"
	"sluice/internal/metrics"
	"sluice/internal/proxy"
)

// packetCounter returns what reads the counters of a dataplane; nil if it has
// none, or if the kernel cannot count.
func packetCounter(d proxy.Dataplane) func(metrics.PacketCounter) (uint64, error) {
	counting, ok := d.(interface {
		Packets(counter string) (uint64, error)
	})
	if !ok {
		return nil
	}
	read := func(c metrics.PacketCounter) (uint64, error) {
		switch c {
		case metrics.InvalidDropped:
			return counting.Packets(iptables.InvalidDropped)
		case metrics.LocalhostAccepted:
			return counting.Packets(iptables.LocalhostAccepted)
		default:
			panic(fmt.Sprintf("unknown packet counter %d", uint8(c)))
		}
	}
	if _, err := read(metrics.InvalidDropped); errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return read
}

// packetCounterFailed says why a counter is missing from the metrics.
func packetCounterFailed(c metrics.PacketCounter, err error) {
	klog.Background().Error(err, "Cannot read a packet counter", "counter", c.String())
}

// affinityClients returns what counts the clients that a dataplane remembers;
// nil if it does not count.
func affinityClients(d proxy.Dataplane) func(context.Context, proxy.Family) (clients, room int, err error) {
	if counting, ok := d.(interface {
		AffinityClients(context.Context, proxy.Family) (clients, room int, err error)
	}); ok {
		return counting.AffinityClients
	}
	return nil
}

// cleanupFailed counts a stale chain that a dataplane could not delete.
func (s *ProxyServer) cleanupFailed(f proxy.Family) { s.metrics.NftablesCleanupFailure(f) }

// wrote passes on what a dataplane wrote.
func (s *ProxyServer) wrote(w iptables.Written) {
	s.metrics.IPTablesRules(w.Table, w.Family, metrics.IPTablesCount{Owned: w.Owned, Written: w.Rules})
}

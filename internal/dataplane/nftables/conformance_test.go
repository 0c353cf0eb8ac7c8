package nftables_test

import (
	"context"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
)

// underTest opens the dataplane for the conformance tests.
var underTest = conformance.Dataplane{
	Mode: "nftables",
	Open: func(ctx context.Context) (proxy.Dataplane, error) {
		return nftables.Alone.Open(ctx, mode.Settings{MasqueradeBit: 14})
	},
}

// TestConformance runs the packet table with real packets.
func TestConformance(t *testing.T) { conformance.Run(t, underTest) }

// TestBridged runs it on a node whose pods share a bridge with br_netfilter.
func TestBridged(t *testing.T) { conformance.RunBridged(t, underTest) }

// TestRandom compares random states and packets with the oracle.
func TestRandom(t *testing.T) { conformance.RunRandom(t, underTest, 1, 30) }

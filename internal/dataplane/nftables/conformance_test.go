package nftables_test

import (
	"context"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
)

// underTest puts the dataplane under the packet table.
var underTest = conformance.Dataplane{
	Mode: "nftables",
	Open: func(ctx context.Context) (proxy.Dataplane, error) {
		return nftables.Alone.Open(ctx, mode.Settings{MasqueradeBit: 14})
	},
}

// TestConformance plays the packet table with real packets.
func TestConformance(t *testing.T) { conformance.Run(t, underTest) }

// TestBridged plays it on a node whose pods share a bridge with br_netfilter.
func TestBridged(t *testing.T) { conformance.RunBridged(t, underTest) }

// TestRandom plays random states and packets against the oracle.
func TestRandom(t *testing.T) { conformance.RunRandom(t, underTest, 1, 30) }

package iptables_test

import (
	"context"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/dataplane/iptables"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// underTest returns a variant of the dataplane for the conformance tests.
func underTest(v ipt.Variant) conformance.Dataplane {
	return conformance.Dataplane{
		Mode: "iptables",
		Open: func(ctx context.Context) (proxy.Dataplane, error) {
			return iptables.OpenVariant(ctx, mode.Settings{MasqueradeBit: 14}, v)
		},
	}
}

// TestConformance runs the packet table with real packets, in the nft variant.
func TestConformance(t *testing.T) { conformance.Run(t, underTest(ipt.NFT)) }

// TestConformanceLegacy does the same in the legacy variant.
func TestConformanceLegacy(t *testing.T) { conformance.Run(t, underTest(ipt.Legacy)) }

// TestBridged runs it on a node whose pods share a bridge with br_netfilter.
func TestBridged(t *testing.T) { conformance.RunBridged(t, underTest(ipt.NFT)) }

// TestBridgedLegacy does the same in the legacy variant.
func TestBridgedLegacy(t *testing.T) { conformance.RunBridged(t, underTest(ipt.Legacy)) }

// TestRandom compares random states and packets with the oracle.
func TestRandom(t *testing.T) { conformance.RunRandom(t, underTest(ipt.NFT), 1, 30) }

// TestRandomLegacy does the same in the legacy variant.
func TestRandomLegacy(t *testing.T) { conformance.RunRandom(t, underTest(ipt.Legacy), 1, 30) }

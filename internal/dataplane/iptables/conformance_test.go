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

// underTest puts a variant of the dataplane under the packet table.
func underTest(v ipt.Variant) conformance.Dataplane {
	return conformance.Dataplane{
		Mode: "iptables",
		Open: func(ctx context.Context) (proxy.Dataplane, error) {
			return iptables.OpenVariant(ctx, mode.Settings{MasqueradeBit: 14}, v)
		},
	}
}

// TestConformance plays the packet table with real packets, over nf_tables.
func TestConformance(t *testing.T) { conformance.Run(t, underTest(ipt.NFT)) }

// TestConformanceLegacy does so over the legacy tables.
func TestConformanceLegacy(t *testing.T) { conformance.Run(t, underTest(ipt.Legacy)) }

// TestBridged plays it on a node whose pods share a bridge with br_netfilter.
func TestBridged(t *testing.T) { conformance.RunBridged(t, underTest(ipt.NFT)) }

// TestBridgedLegacy does so over the legacy tables.
func TestBridgedLegacy(t *testing.T) { conformance.RunBridged(t, underTest(ipt.Legacy)) }

// TestRandom plays random states and packets against the oracle.
func TestRandom(t *testing.T) { conformance.RunRandom(t, underTest(ipt.NFT), 1, 30) }

// TestRandomLegacy does so over the legacy tables.
func TestRandomLegacy(t *testing.T) { conformance.RunRandom(t, underTest(ipt.Legacy), 1, 30) }

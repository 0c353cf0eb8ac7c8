package ipvs_test

import (
	"context"
	"testing"

	"sluice/internal/conformance"
	"sluice/internal/dataplane/ipvs"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/proxy"
)

// underTest puts the dataplane under the packet table.
var underTest = conformance.Dataplane{
	Mode:  "ipvs",
	Binds: ipvs.Binds,
	Cannot: map[string]string{
		"affinity-frontends":       "IPVS remembers a client by virtual server, so each frontend of a Service has its own memory",
		"affinity-lists-shared":    "IPVS remembers a client by virtual server, so each frontend of a Service has its own memory",
		"affinity-expires":         "IPVS remembers a client as long as one of its connections, two minutes after it was closed",
		"affinity-timeout-changed": "IPVS remembers a client as long as one of its connections, two minutes after it was closed",
	},
	Open: func(ctx context.Context) (proxy.Dataplane, error) {
		return ipvs.Open(ctx, mode.Settings{MasqueradeBit: 14})
	},
}

// TestConformance plays the packet table with real packets.
func TestConformance(t *testing.T) {
	ipvstest.Require(t)
	conformance.Run(t, underTest)
}

// TestBridged runs it on a node whose pods share a bridge with br_netfilter.
func TestBridged(t *testing.T) {
	ipvstest.Require(t)
	conformance.RunBridged(t, underTest)
}

// TestRandom plays random states and packets against the oracle.
func TestRandom(t *testing.T) {
	ipvstest.Require(t)
	conformance.RunRandom(t, underTest, 1, 30)
}

// TestRandomRouted plays others before any IPv4 address is on the link: Run, which adds
// them, is not called.
func TestRandomRouted(t *testing.T) {
	ipvstest.Require(t)
	routed := underTest
	routed.Open = func(ctx context.Context) (proxy.Dataplane, error) {
		d, err := underTest.Open(ctx)
		return struct{ proxy.Dataplane }{d}, err
	}
	conformance.RunRandom(t, routed, 2, 10)
}

package nftables

import (
	"testing"

	"sluice/internal/archtest/hops"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/nft/nfttest"
)

// TestHops checks the hops of this mode in ARCHITECTURE.md.
func TestHops(t *testing.T) {
	hops.Follow(t, "nftables", Alone.New(nfttest.NewFake(), mode.Settings{MasqueradeBit: 14}))
}

package nftables_test

import (
	"testing"

	"sluice/internal/conformance/balancetest"
	"sluice/internal/dataplane/nftables"
)

// TestBalancing counts real connections.
func TestBalancing(t *testing.T) {
	balancetest.Run(t, balancetest.Mode{Open: underTest.Open, Ways: nftables.Mode().Balancing})
}

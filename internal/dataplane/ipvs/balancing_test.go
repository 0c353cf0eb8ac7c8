package ipvs_test

import (
	"testing"

	"sluice/internal/conformance/balancetest"
	"sluice/internal/dataplane/ipvs"
	"sluice/internal/kernel/ipvs/ipvstest"
)

// TestBalancing counts real connections.
func TestBalancing(t *testing.T) {
	ipvstest.Require(t)
	m := ipvs.Mode()
	balancetest.Run(t, balancetest.Mode{Open: underTest.Open, Ways: m.Balancing, Weights: m.Weights})
}

package ipvs_test

import (
	"testing"

	"sluice/internal/conformance/balancetest"
	"sluice/internal/dataplane/ipvs"
)

// TestBalancing counts real connections.
func TestBalancing(t *testing.T) {
	requireIPVS(t)
	m := ipvs.Mode()
	balancetest.Run(t, balancetest.Mode{Open: underTest.Open, Ways: m.Balancing, Weights: m.Weights})
}

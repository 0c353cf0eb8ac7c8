package userspace_test

import (
	"testing"

	"sluice/internal/conformance/balancetest"
	"sluice/internal/dataplane/userspace"
)

// TestBalancing counts real connections.
func TestBalancing(t *testing.T) {
	m := userspace.Mode()
	balancetest.Run(t, balancetest.Mode{Open: underTest(t).Open, Ways: m.Balancing, Weights: m.Weights})
}

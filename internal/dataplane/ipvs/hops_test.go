package ipvs

import (
	"testing"

	"sluice/internal/archtest/hops"
	"sluice/internal/dataplane/mode"
)

// TestHops checks the hops of this mode in ARCHITECTURE.md.
func TestHops(t *testing.T) {
	hops.Follow(t, "ipvs", newHost(t).open(mode.IPVS{}))
}

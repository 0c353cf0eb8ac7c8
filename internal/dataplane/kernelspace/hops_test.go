package kernelspace

import (
	"testing"

	"sluice/internal/archtest/hops"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/hns/hnstest"
)

// TestHops checks the hops of this mode in ARCHITECTURE.md.
func TestHops(t *testing.T) {
	hops.Follow(t, "kernelspace", newNode(hnstest.Full, bridge, mode.Kernelspace{}).Dataplane)
}

package iptables

import (
	"testing"

	"sluice/internal/archtest/hops"
)

// TestHops checks the hops of this mode in ARCHITECTURE.md.
func TestHops(t *testing.T) {
	d, _ := faked()
	hops.Follow(t, "iptables", d)
}

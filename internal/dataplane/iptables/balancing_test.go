package iptables_test

import (
	"testing"

	"sluice/internal/conformance/balancetest"
	"sluice/internal/dataplane/iptables"
	"sluice/internal/kernel/ipt"
)

// TestBalancing counts real connections, with both variants.
func TestBalancing(t *testing.T) {
	for _, v := range []ipt.Variant{ipt.NFT, ipt.Legacy} {
		t.Run(v.String(), func(t *testing.T) {
			balancetest.Run(t, balancetest.Mode{Open: underTest(v).Open, Ways: iptables.Mode().Balancing})
		})
	}
}

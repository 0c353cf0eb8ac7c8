package ipvstest

import (
	"errors"
	"os"
	"testing"

	"sluice/internal/kernel/ipvs"
)

// Require skips a test if the kernel has no IPVS; such tests run in a virtual machine.
// Any other error of opening IPVS fails the test.
func Require(t testing.TB) {
	t.Helper()
	k, err := ipvs.Open()
	if _, loaded := os.Stat("/sys/module/ip_vs"); errors.Is(err, ipvs.ErrMissing) && loaded != nil {
		t.Skip("this kernel has no IPVS (module ip_vs)")
	}
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
}

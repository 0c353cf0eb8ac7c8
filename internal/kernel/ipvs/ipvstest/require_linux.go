package ipvstest

import (
	"errors"
	"os"
	"testing"

	"sluice/internal/kernel/ipvs"
)

// Require skips a test where the kernel has no IPVS: a virtual machine plays it.
// Whatever else keeps IPVS from being used fails it.
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

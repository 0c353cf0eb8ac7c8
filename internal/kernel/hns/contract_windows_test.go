package hns_test

import (
	"os"
	"testing"

	"sluice/internal/kernel/hns"
)

// networkVariable names the overlay network that the service has. Where it is
// not set, nobody wants a test to change the service of this node.
const networkVariable = "SLUICE_TEST_HNS_NETWORK"

func implementations() map[string]func(*testing.T) (hns.Interface, string) {
	return map[string]func(*testing.T) (hns.Interface, string){"fake": openFake, "service": openService}
}

func openService(t *testing.T) (hns.Interface, string) {
	t.Helper()
	network := os.Getenv(networkVariable)
	if network == "" {
		t.Skipf("%s does not name an overlay network", networkVariable)
	}
	return hns.Service{}, network
}

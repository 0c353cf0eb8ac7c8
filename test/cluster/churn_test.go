package cluster

import (
	"flag"
	"net/netip"
	"testing"

	"sluice/internal/conformance/churn"
	"sluice/internal/conformance/lab"
	"sluice/test/cluster/testbed"
)

// histories is how many each mode goes through.
var histories = flag.Int("churn", 2, "run this many random `HISTORIES` in each mode, of up to 10 steps each")

// TestChurn runs random histories with the whole daemon and a real API server, with faults of the
// API server.
func TestChurn(t *testing.T) {
	churn.SetHistories(t, *histories)
	for _, mode := range churn.Modes {
		t.Run(mode, func(t *testing.T) {
			churn.Run(t, churn.Settings{
				Mode: mode, Program: bed.Sluice(), Objects: "a real API server", Cgroups: bed.Cgroups,
				Open: func(node *lab.Host) (churn.Source, error) { return openAPI(t, node) },
			})
		})
	}
}

// openAPI connects a node outside of the cluster to the API server through a gate.
func openAPI(t *testing.T, node *lab.Host) (*api, error) {
	gate, err := bed.NewGateOn(node, netip.MustParseAddrPort("127.0.0.1:16443"))
	if err != nil {
		return nil, err
	}
	user, err := bed.NewUserAt(testbed.ProxyIdentity(&testbed.Node{Name: "test-node"}), gate.At)
	if err != nil {
		return nil, err
	}
	return &api{gate: gate, user: user, dir: t.TempDir(), written: map[string]string{}, spaces: map[string]bool{}}, nil
}

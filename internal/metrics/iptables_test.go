package metrics

import (
	"testing"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/config"
)

const (
	invalidName   = "iptables_ct_state_invalid_dropped_packets_total"
	localhostName = "iptables_localhost_nodeports_accepted_packets_total"
)

// TestPackets reads them whenever somebody asks, and not before.
func TestPackets(t *testing.T) {
	r := k8s.NewKubeRegistry()
	reads := uint64(0)
	_, err := New(Settings{
		Register: r.Register, CustomRegister: r.CustomRegister, Mode: config.IPTables,
		Packets: func() Packets { reads++; return Packets{InvalidDropped: reads, LocalhostAccepted: 9} },
	})
	if err != nil || reads != 0 {
		t.Fatalf("%d reads before anybody asked, error %v", reads, err)
	}
	wantValues(t, r, invalidName, map[string]float64{"": 1})
	wantValues(t, r, localhostName, map[string]float64{"": 9})
	wantValues(t, r, invalidName, map[string]float64{"": 3})
}

// TestNobodyCountsPackets shows neither.
func TestNobodyCountsPackets(t *testing.T) {
	r := k8s.NewKubeRegistry()
	if _, err := New(Settings{Register: r.Register, CustomRegister: r.CustomRegister, Mode: config.IPTables}); err != nil {
		t.Fatal(err)
	}
	wantValues(t, r, invalidName, map[string]float64{})
	wantValues(t, r, localhostName, map[string]float64{})
}

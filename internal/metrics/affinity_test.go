package metrics

import (
	"context"
	"errors"
	"testing"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/config"
	"sluice/internal/proxy"
)

// TestAffinityClients shows a family that can be counted, and no other.
func TestAffinityClients(t *testing.T) {
	r := k8s.NewKubeRegistry()
	_, err := New(Settings{
		Register: r.Register, CustomRegister: r.CustomRegister, Mode: config.NFTables, Families: proxy.Families[:],
		AffinityClients: func(_ context.Context, f proxy.Family) (int, int, error) {
			if f == proxy.IPv6 {
				return 0, 0, errors.New("no such table")
			}
			return 7, 100, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	wantValues(t, r, "nftables_affinity_clients", map[string]float64{"IPv4": 7})
	wantValues(t, r, "nftables_affinity_clients_limit", map[string]float64{"IPv4": 100})
}

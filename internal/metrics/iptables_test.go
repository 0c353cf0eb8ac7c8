package metrics

import (
	"errors"
	"slices"
	"testing"

	k8s "k8s.io/component-base/metrics"

	"sluice/internal/config"
)

const (
	invalidName   = "iptables_ct_state_invalid_dropped_packets_total"
	localhostName = "iptables_localhost_nodeports_accepted_packets_total"
)

// TestPacketCounterThatCannotBeRead leaves one out, shows the other, and says
// so once each time it happens.
func TestPacketCounterThatCannotBeRead(t *testing.T) {
	broken := errors.New("no such counter")
	var fail error
	var told []string
	r := k8s.NewKubeRegistry()
	_, err := New(Settings{
		Register: r.Register, CustomRegister: r.CustomRegister, Mode: config.IPTables,
		PacketCounter: func(c PacketCounter) (uint64, error) {
			if c == InvalidDropped {
				return 7, fail
			}
			return 9, nil
		},
		PacketCounterFailed: func(c PacketCounter, err error) { told = append(told, c.String()+": "+err.Error()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	const message = "packets dropped as invalid: no such counter"
	steps := []struct {
		fail error
		want map[string]float64
		told []string
	}{
		{nil, map[string]float64{"": 7}, nil},
		{broken, map[string]float64{}, []string{message}},
		{broken, map[string]float64{}, []string{message}},
		{nil, map[string]float64{"": 7}, []string{message}},
		{broken, map[string]float64{}, []string{message, message}},
	}
	for i, s := range steps {
		fail = s.fail
		wantValues(t, r, invalidName, s.want)
		wantValues(t, r, localhostName, map[string]float64{"": 9})
		if !slices.Equal(told, s.told) {
			t.Errorf("step %d: told %q; want %q", i, told, s.told)
		}
	}
}

// TestNobodyListens fails without anybody to tell.
func TestNobodyListens(t *testing.T) {
	r := k8s.NewKubeRegistry()
	_, err := New(Settings{
		Register: r.Register, CustomRegister: r.CustomRegister, Mode: config.IPTables,
		PacketCounter: func(PacketCounter) (uint64, error) { return 0, errors.New("no such counter") },
	})
	if err != nil {
		t.Fatal(err)
	}
	wantValues(t, r, invalidName, map[string]float64{})
}

// TestKernelThatDoesNotCount shows neither.
func TestKernelThatDoesNotCount(t *testing.T) {
	r := k8s.NewKubeRegistry()
	if _, err := New(Settings{Register: r.Register, CustomRegister: r.CustomRegister, Mode: config.IPTables}); err != nil {
		t.Fatal(err)
	}
	wantValues(t, r, invalidName, map[string]float64{})
	wantValues(t, r, localhostName, map[string]float64{})
}

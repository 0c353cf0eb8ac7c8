package balance

import (
	"fmt"
	"net/netip"
	"testing"

	"sluice/internal/proxy"
)

// serviceOf returns a service whose endpoints have these weights.
func serviceOf(way proxy.Balancing, weights ...uint16) *Service {
	row := &proxy.ServicePort{Balancing: way}
	for i, w := range weights {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
		row.Cluster = append(row.Cluster, proxy.Endpoint{Addr: at, Weight: w})
	}
	s := NewService(row.Key)
	s.set(row)
	return s
}

// take makes n connections from different clients, each of which ends immediately.
func take(s *Service, n int) []int {
	got := make([]int, len(s.row.Cluster))
	for i := range n {
		e, _ := s.Choose(netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}), proxy.ScopeCluster, nil)
		s.Release(e.Addr)
		a := e.Addr.Addr().As4()
		got[int(a[2])<<8|int(a[3])]++
	}
	return got
}

func TestTurns(t *testing.T) {
	for _, tt := range []struct {
		way     proxy.Balancing
		weights []uint16
		n       int
		want    string
	}{
		{proxy.RoundRobin, []uint16{0, 0, 0}, 9, "[3 3 3]"},
		{proxy.RoundRobin, []uint16{65535, 65535}, 8, "[4 4]"},
		{proxy.RoundRobin, []uint16{1, 2, 3, 4}, 20, "[2 4 6 8]"},
		{proxy.RoundRobin, []uint16{300, 100}, 8, "[6 2]"},
		{proxy.LeastConnections, []uint16{0, 0, 0, 0}, 8, "[2 2 2 2]"}, // all have none, and none comes first always
	} {
		if got := fmt.Sprint(take(serviceOf(tt.way, tt.weights...), tt.n)); got != tt.want {
			t.Errorf("%v, weights %v: %d connections went to %s; want %s", tt.way, tt.weights, tt.n, got, tt.want)
		}
	}
	// Weights that have no divisor in common are not served one after the other.
	if got := take(serviceOf(proxy.RoundRobin, 65535, 65534), 100); got[0] < 40 || got[1] < 40 {
		t.Errorf("the first 100 turns went to %v", got)
	}
}

// TestLeastLoaded checks that an endpoint with twice the weight has twice as many open connections.
func TestLeastLoaded(t *testing.T) {
	s := serviceOf(proxy.LeastConnections, 1, 2)
	for range 30 {
		s.Choose(netip.Addr{}, proxy.ScopeCluster, nil)
	}
	if a, b := s.open[s.row.Cluster[0].Addr], s.open[s.row.Cluster[1].Addr]; a != 10 || b != 20 {
		t.Errorf("open connections %d and %d; want 10 and 20", a, b)
	}
}

func TestMaglevShares(t *testing.T) {
	for _, weights := range [][]uint16{{0, 0, 0, 0}, {65535, 65535}, {65535, 65534, 1}, {1, 3}} {
		list := serviceOf(proxy.Maglev, weights...).row.Cluster
		places, total := make([]int, len(list)), 0
		for _, p := range newMaglev(list).entries {
			places[p-1]++
		}
		for _, e := range list {
			total += e.Share()
		}
		for i, e := range list {
			if want := maglevEntries * e.Share() / total; places[i] < want-2 || places[i] > want+2 {
				t.Errorf("weights %v: places %v; want %d of the %dth", weights, places, want, i)
			}
		}
	}
}

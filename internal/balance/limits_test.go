package balance

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice/internal/proxy"
)

// TestManyClients checks that the number of remembered clients is bounded, that every client gets
// an endpoint, and that remembered clients keep theirs.
func TestManyClients(t *testing.T) {
	s := serviceOf(proxy.RoundRobin, make([]uint16, 5000)...)
	s.row.Affinity = time.Hour
	client := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range 100_000 {
		if _, ok := s.Choose(client(i), proxy.ScopeCluster, nil); !ok {
			t.Fatalf("client %d got no endpoint", i)
		}
	}
	if len(s.clients) != maxClients {
		t.Errorf("%d clients are remembered; want %d", len(s.clients), maxClients)
	}
	kept := 0
	for i := range 100_000 {
		want, known := s.clients[Client{client(i), proxy.ScopeCluster}]
		if !known {
			continue
		}
		kept++
		if e, _ := s.Choose(client(i), proxy.ScopeCluster, nil); e.Addr != want.Endpoint {
			t.Fatalf("client %d was sent to %v, and is remembered for %v", i, e.Addr, want.Endpoint)
		}
	}
	if kept != maxClients {
		t.Errorf("%d clients kept their endpoint; want %d", kept, maxClients)
	}
	s.set(&proxy.ServicePort{})
	if s.clients != nil {
		t.Error("clients are remembered without affinity")
	}
}

// TestCostOfManyEndpoints bounds the cost of two lookups: whether an endpoint serves, needed for
// every session after every change, and the slot of a client's endpoint, needed for every
// connection.
func TestCostOfManyEndpoints(t *testing.T) {
	ask := func(endpoints int) time.Duration {
		s := serviceOf(proxy.RoundRobin, make([]uint16, endpoints)...)
		gone := netip.MustParseAddrPort("192.0.2.1:80")
		var times []time.Duration
		for range 20 {
			began := time.Now()
			for range 1000 {
				if s.Serves(gone) {
					t.Fatal("an endpoint serves that is not there")
				}
			}
			times = append(times, time.Since(began))
		}
		return slices.Min(times)
	}
	few, many := ask(1<<9), ask(1<<16)
	t.Logf("1,000 sessions: %v with 512 endpoints, %v with 65,536", few, many)
	if many > 16*few { // It is the same, and was 128 times as much.
		t.Errorf("128 times as many endpoints take %v for what takes %v", many, few)
	}
}

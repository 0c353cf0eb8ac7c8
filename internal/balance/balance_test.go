package balance_test

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/balance"
	"sluice/internal/proxy"
)

func addr(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8080)
}

func client(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}) }

// row returns a row with endpoints of some weights.
func row(by proxy.Balancing, weights ...uint16) *proxy.ServicePort {
	sp := &proxy.ServicePort{
		Key:       proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: "web", Protocol: proxy.TCP}},
		Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: addr(1000)}},
		Balancing: by,
	}
	for i, w := range weights {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: addr(i), Weight: w})
	}
	return sp
}

// with returns an index with a row, and its service.
func with(sp *proxy.ServicePort) (*balance.Index, *balance.Service) {
	x := balance.NewIndex()
	x.Update([]proxy.PortKey{sp.Key}, map[proxy.PortKey]*proxy.ServicePort{sp.Key: sp})
	return x, x.Get(sp.Key)
}

func choose(t *testing.T, s *balance.Service, c netip.Addr, tried ...netip.AddrPort) netip.AddrPort {
	t.Helper()
	e, ok := s.Choose(c, proxy.ScopeCluster, tried)
	if !ok {
		t.Fatal("no endpoint")
	}
	return e.Addr
}

func TestShares(t *testing.T) {
	for _, by := range []proxy.Balancing{proxy.BalanceDefault, proxy.RoundRobin, proxy.Random, proxy.LeastConnections, proxy.SourceHash, proxy.Maglev} {
		_, s := with(row(by, 0, 1, 2))
		got := map[netip.AddrPort]int{}
		const n = 8000
		for i := range n {
			got[choose(t, s, client(i))]++
		}
		for i, share := range []int{1, 1, 2} {
			want := n * share / 4
			if have := got[addr(i)]; have < want*8/10 || have > want*12/10 {
				t.Errorf("%v: endpoint %d got %d of %d; want about %d", by, i, have, n, want)
			}
		}
	}
}

func TestRoundRobinTakesTurns(t *testing.T) {
	_, s := with(row(proxy.RoundRobin, 1, 1, 1))
	first, second, third := choose(t, s, client(1)), choose(t, s, client(1)), choose(t, s, client(1))
	if first == second || second == third || first == third || choose(t, s, client(1)) != first {
		t.Errorf("%v, %v, %v and not the first again", first, second, third)
	}
}

func TestLeastConnections(t *testing.T) {
	_, s := with(row(proxy.LeastConnections, 1, 1))
	a, b := choose(t, s, client(1)), choose(t, s, client(1))
	s.Release(a)
	if next := choose(t, s, client(1)); a == b || next != a {
		t.Errorf("%v, then %v, and after the end of the first %v", a, b, next)
	}
}

func TestTriedOnesAreLeftOut(t *testing.T) {
	for _, by := range []proxy.Balancing{proxy.RoundRobin, proxy.Random, proxy.LeastConnections, proxy.SourceHash, proxy.Maglev} {
		_, s := with(row(by, 1, 1, 1))
		for i := range 50 {
			if got := choose(t, s, client(i), addr(0), addr(2)); got != addr(1) {
				t.Fatalf("%v: %v; want the one that was not tried", by, got)
			}
		}
		if e, ok := s.Choose(client(1), proxy.ScopeCluster, []netip.AddrPort{addr(0), addr(1), addr(2)}); ok {
			t.Errorf("%v: %v; want none", by, e)
		}
		if e, ok := s.Choose(client(1), proxy.ScopeLocal, nil); ok {
			t.Errorf("%v: %v of an empty list", by, e)
		}
	}
}

// TestMaglevMovesFew checks that clients keep their endpoint when another one is removed.
func TestMaglevMovesFew(t *testing.T) {
	weights := make([]uint16, 20)
	_, before := with(row(proxy.Maglev, weights...))
	_, after := with(row(proxy.Maglev, weights[:19]...))
	moved := 0
	for i := range 5000 {
		was := choose(t, before, client(i))
		if was != addr(19) && choose(t, after, client(i)) != was {
			moved++
		}
	}
	if moved > 500 {
		t.Errorf("%d of 5000 clients moved; want at most a tenth", moved)
	}
}

func TestAffinity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sp := row(proxy.RoundRobin, 1, 1, 1)
		sp.Affinity = time.Minute
		_, s := with(sp)
		first := choose(t, s, client(1))
		for range 5 {
			time.Sleep(50 * time.Second) // each connection begins the time anew
			if got := choose(t, s, client(1)); got != first {
				t.Errorf("%v; want %v", got, first)
			}
		}
		other := choose(t, s, client(1), first)
		if got := choose(t, s, client(1)); got != other || other == first {
			t.Errorf("after a failure %v, then %v; the first was %v", other, got, first)
		}
		s.Forget(client(1), first)
		if got := choose(t, s, client(1)); got != other {
			t.Errorf("%v, since %v does not answer; want %v", got, first, other)
		}
		s.Forget(client(1), other)
		for c := range s.Clients {
			t.Errorf("%v is still remembered", c)
		}
		last := choose(t, s, client(1))
		time.Sleep(time.Minute)
		if got := choose(t, s, client(1)); got == last {
			t.Errorf("%v is remembered for too long", got)
		}
	})
}

// TestAffinityOfLists checks that a client keeps an endpoint of each list, and uses that of one
// list for the other if both have it.
func TestAffinityOfLists(t *testing.T) {
	sp := row(proxy.RoundRobin, 1, 1, 1, 1)
	sp.Local, sp.Affinity = append(sp.Cluster[3:], proxy.Endpoint{Addr: addr(8)}, proxy.Endpoint{Addr: addr(9)}), time.Hour
	_, s := with(sp)
	for i := range 12 {
		first := [...]proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal}[i/6]
		a, _ := s.Choose(client(i), first, nil)
		b, _ := s.Choose(client(i), 1-first, nil)
		if both := addr(3); a.Addr == both && b.Addr != both {
			t.Errorf("client %d has %v of scope %v, then %v of the other", i, a.Addr, first, b.Addr)
		}
		again, _ := s.Choose(client(i), first, nil)
		other, _ := s.Choose(client(i), 1-first, nil)
		if again.Addr != a.Addr || other.Addr != b.Addr {
			t.Errorf("client %d had %v and %v, now %v and %v", i, a.Addr, b.Addr, again.Addr, other.Addr)
		}
	}
}

func TestRememberedClientsAreBounded(t *testing.T) {
	sp := row(proxy.RoundRobin, 1)
	sp.Affinity = time.Hour
	_, s := with(sp)
	for i := range 1<<16 + 1000 {
		choose(t, s, netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	n := 0
	for range s.Clients {
		n++
	}
	if n > 1<<16 {
		t.Errorf("%d clients are remembered; want at most %d", n, 1<<16)
	}
}

// TestUpdate checks that a row is found by its old frontends until they are removed, and that a
// frontend that moved to another row is found there.
func TestUpdate(t *testing.T) {
	a := row(proxy.RoundRobin, 1)
	x, _ := with(a)
	b, moved := *a, *a
	b.Key.Name = "other"
	moved.Frontends = []proxy.Frontend{{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), 30000)}}
	keys := []proxy.PortKey{a.Key, b.Key}
	forget := x.Update(keys, map[proxy.PortKey]*proxy.ServicePort{a.Key: &moved, b.Key: &b})
	if got := x.Find(proxy.TCP, addr(1000)); got == nil || got.Key != b.Key {
		t.Errorf("the frontend leads to %v; want the row that has it now", got)
	}
	if got := x.Find(proxy.TCP, netip.AddrPortFrom(client(1), 30000)); got == nil || got.Key != a.Key {
		t.Errorf("the NodePort leads to %v", got)
	}
	forget()
	forget = x.Update(keys, map[proxy.PortKey]*proxy.ServicePort{a.Key: &moved})
	if x.Find(proxy.TCP, addr(1000)) == nil {
		t.Error("a frontend is forgotten while rules may lead there")
	}
	// A write that fails is tried again, and again: nobody keeps all rows for each try.
	if x.Update(append(keys, keys...), map[proxy.PortKey]*proxy.ServicePort{a.Key: &moved}) != nil {
		t.Error("there is something to forget once more")
	}
	forget()
	if got := x.Find(proxy.TCP, addr(1000)); got != nil || x.Get(b.Key) != nil {
		t.Errorf("the frontend leads to %v; want none", got)
	}
	if got := x.Find(proxy.UDP, netip.AddrPortFrom(client(1), 30000)); got != nil {
		t.Errorf("another protocol's NodePort leads to %v", got)
	}
}

// TestChangesDuringLookups changes and removes rows while connections are made.
func TestChangesDuringLookups(t *testing.T) {
	forms := []*proxy.ServicePort{row(proxy.Maglev, 1, 1, 1), row(proxy.LeastConnections, 1), nil}
	x, _ := with(forms[0])
	key := forms[0].Key
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 2000 {
				if s := x.Find(proxy.TCP, addr(1000)); s != nil {
					if e, ok := s.Choose(client(i), proxy.ScopeCluster, nil); ok {
						s.Serves(e.Addr)
						s.Release(e.Addr)
					}
				}
			}
		})
	}
	for i := range 300 {
		want := map[proxy.PortKey]*proxy.ServicePort{}
		if sp := forms[i%len(forms)]; sp != nil {
			want[key] = sp
		}
		if forget := x.Update([]proxy.PortKey{key}, want); forget != nil {
			forget()
		}
	}
	wg.Wait()
}

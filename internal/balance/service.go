package balance

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice/internal/proxy"
)

// maxClients bounds the clients that a service remembers for session affinity.
const maxClients = 1 << 16

var scopes = [...]proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal}

// Service is a row and the state of its connections. Its methods may be called concurrently.
type Service struct {
	Key     proxy.PortKey
	leaving bool // the row is no longer wanted; guarded by Index.mu

	mu      sync.Mutex
	row     *proxy.ServicePort // nil if the service is in no index
	turn    uint64             // of round robin and least connections
	clients map[Client]Remembered
	open    map[netip.AddrPort]int    // connections, by endpoint
	shares  [2]*shares                // by scope; nil until needed
	maglev  [2]*maglevTable           // likewise
	slots   [2]map[netip.AddrPort]int // likewise
	serving map[netip.AddrPort]bool   // endpoints that may have flows; nil until needed
}

// Client is the key of session affinity: a client's address, and the list that its endpoint was
// chosen from. The two lists of a row may have no endpoint in common, so a client that uses
// frontends of both keeps an endpoint of each.
type Client struct {
	Addr  netip.Addr
	Scope proxy.Scope
}

// Remembered is the endpoint that session affinity keeps for a client, and when the client used it
// last.
type Remembered struct {
	Endpoint netip.AddrPort
	Used     time.Time
}

// NewService returns a service without a row: it has no endpoints, and only counts connections.
func NewService(key proxy.PortKey) *Service {
	return &Service{Key: key, open: map[netip.AddrPort]int{}}
}

// set replaces the row and drops everything derived from the old one.
func (s *Service) set(row *proxy.ServicePort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.row, s.shares, s.maglev = row, [2]*shares{}, [2]*maglevTable{}
	s.slots, s.serving = [2]map[netip.AddrPort]int{}, nil
	if row == nil || row.Affinity == 0 {
		s.clients = nil
	}
}

// Choose chooses an endpoint for a new connection, except those already tried, and counts the
// connection until Release. It returns false if there is no endpoint.
func (s *Service) Choose(client netip.Addr, scope proxy.Scope, tried []netip.AddrPort) (proxy.Endpoint, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.row == nil {
		return proxy.Endpoint{}, false
	}
	list := s.row.List(scope)
	if len(tried) > 0 {
		list = slices.DeleteFunc(slices.Clone(list), func(e proxy.Endpoint) bool { return slices.Contains(tried, e.Addr) })
	}
	if len(list) == 0 {
		return proxy.Endpoint{}, false
	}
	e, known := s.remembered(client, scope)
	if !known || slices.Contains(tried, e.Addr) {
		e = s.pick(list, client, scope, len(tried) == 0)
	}
	if s.row.Affinity > 0 {
		s.remember(Client{client, scope}, Remembered{e.Addr, time.Now()})
	}
	s.open[e.Addr]++
	return e, true
}

// Release ends a connection that Choose or Acquire counted.
func (s *Service) Release(endpoint netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[endpoint]--; s.open[endpoint] <= 0 {
		delete(s.open, endpoint)
	}
}

// Acquire counts a connection whose endpoint another process chose.
func (s *Service) Acquire(endpoint netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[endpoint]++
}

// Forget makes session affinity forget a client's endpoint, because it does not answer.
func (s *Service) Forget(client netip.Addr, endpoint netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, scope := range scopes {
		if c := (Client{client, scope}); s.clients[c].Endpoint == endpoint {
			delete(s.clients, c)
		}
	}
}

// remembered returns the client's endpoint in a list: the one chosen from this list, or else the
// one chosen from the other list if this one has it as well.
func (s *Service) remembered(client netip.Addr, scope proxy.Scope) (proxy.Endpoint, bool) {
	for _, had := range []proxy.Scope{scope, 1 - scope} {
		r, ok := s.clients[Client{client, had}]
		if !ok || time.Since(r.Used) >= s.row.Affinity {
			continue
		}
		if i, ok := s.slot(r.Endpoint, scope); ok {
			return s.row.List(scope)[i], true
		}
	}
	return proxy.Endpoint{}, false
}

// slot returns the position of an endpoint in a list of the row. It uses a map, because there may
// be thousands of endpoints, and many clients to look up after every change.
func (s *Service) slot(endpoint netip.AddrPort, scope proxy.Scope) (int, bool) {
	if s.slots[scope] == nil {
		list := s.row.List(scope)
		s.slots[scope] = make(map[netip.AddrPort]int, len(list))
		for i, e := range list {
			s.slots[scope][e.Addr] = i
		}
	}
	i, ok := s.slots[scope][endpoint]
	return i, ok
}

// remember records a client's endpoint. If there is no room, it removes clients whose affinity has
// expired, or else an arbitrary one.
func (s *Service) remember(client Client, now Remembered) {
	if s.clients == nil {
		s.clients = map[Client]Remembered{}
	}
	if _, known := s.clients[client]; !known && len(s.clients) >= maxClients {
		looked := 0
		for c, r := range s.clients {
			if looked++; time.Since(r.Used) >= s.row.Affinity || looked == 64 {
				delete(s.clients, c)
			}
			if looked == 64 {
				break
			}
		}
	}
	s.clients[client] = now
}

// pick chooses from a list by the row's load-balancing method; whole means that the list is a
// complete list of the row, not one without the tried endpoints.
func (s *Service) pick(list []proxy.Endpoint, client netip.Addr, scope proxy.Scope, whole bool) proxy.Endpoint {
	share := s.shares[scope]
	if share == nil || !whole {
		share = newShares(list)
	}
	if whole {
		s.shares[scope] = share
	}
	switch {
	case s.row.Balancing == proxy.Random:
		return share.of(list, rand.Uint64())
	case s.row.Balancing == proxy.LeastConnections:
		s.turn++
		return s.leastLoaded(list, list[s.turn%uint64(len(list))])
	case s.row.Balancing == proxy.Maglev && whole:
		if s.maglev[scope] == nil {
			s.maglev[scope] = newMaglev(list)
		}
		return s.maglev[scope].of(client)
	case s.row.Balancing == proxy.SourceHash, s.row.Balancing == proxy.Maglev:
		return share.of(list, hash(client.AsSlice()))
	default:
		s.turn++
		return share.of(list, s.turn%share.total*share.step)
	}
}

// leastLoaded returns the endpoint with the fewest connections relative to its weight; first wins
// if it has as few as any other.
func (s *Service) leastLoaded(list []proxy.Endpoint, first proxy.Endpoint) proxy.Endpoint {
	for _, e := range list {
		if s.open[e.Addr]*first.Share() < s.open[first.Addr]*e.Share() {
			first = e
		}
	}
	return first
}

// Serves reports whether existing flows to an endpoint may continue.
func (s *Service) Serves(endpoint netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.row == nil {
		return false
	}
	if s.serving == nil {
		s.serving = s.row.Serving()
	}
	return s.serving[endpoint]
}

// Row returns the row, or nil if it was removed.
func (s *Service) Row() *proxy.ServicePort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.row
}

// RememberedEndpoint returns the endpoint that session affinity keeps for a client, or the zero
// value.
func (s *Service) RememberedEndpoint(client netip.Addr, scope proxy.Scope) netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.row == nil {
		return netip.AddrPort{}
	}
	e, _ := s.remembered(client, scope)
	return e.Addr
}

// Clients yields the remembered clients. The service is locked meanwhile.
func (s *Service) Clients(yield func(Client, Remembered) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.All(s.clients)(yield)
}

// Restore remembers a client that another process knew.
func (s *Service) Restore(client Client, r Remembered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.row != nil && s.row.Affinity > 0 {
		s.remember(client, r)
	}
}

package balance

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/internal/proxy"
)

// maxClients bounds the clients that a service remembers for session affinity.
const maxClients = 1 << 16

var scopes = [...]proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal}

// Service is a row, and what is remembered of its connections. Any goroutine
// may use it.
type Service struct {
	Key     proxy.PortKey
	leaving bool // guarded by the index

	mu      sync.Mutex
	row     *proxy.ServicePort // nil: there is none any more
	Version atomic.Uint64      // how often the row changed
	turn    uint64             // of round robin
	clients map[Client]Remembered
	open    map[netip.AddrPort]int // connections, by endpoint
	shares  [2]*shares             // by scope; nil: to be made
	maglev  [2]*maglevTable        // the same
	places  [2]map[netip.AddrPort]int
	serving map[netip.AddrPort]bool // the endpoints that may have flows; nil: to be made
}

// Client is who session affinity holds for: an address, and the list of endpoints that
// it was sent to one of. The lists of a row may have nothing in common, and a client
// that comes to frontends of both keeps an endpoint of each.
type Client struct {
	Addr  netip.Addr
	Scope proxy.Scope
}

// Remembered is the endpoint of a client that session affinity holds for.
type Remembered struct {
	Endpoint netip.AddrPort
	Used     time.Time
}

// NewService returns the service of a row that is not known.
func NewService(key proxy.PortKey) *Service {
	return &Service{Key: key, open: map[netip.AddrPort]int{}}
}

// set makes a row the service's.
func (s *Service) set(row *proxy.ServicePort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.row, s.shares, s.maglev = row, [2]*shares{}, [2]*maglevTable{}
	s.places, s.serving = [2]map[netip.AddrPort]int{}, nil
	s.Version.Add(1)
	if row == nil || row.Affinity == 0 {
		s.clients = nil
	}
}

// Choose returns an endpoint for a connection that those tried failed for, and
// counts the connection until Release. It reports false if there is none.
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

// Release ends a connection that Choose counted.
func (s *Service) Release(endpoint netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[endpoint]--; s.open[endpoint] <= 0 {
		delete(s.open, endpoint)
	}
}

// Adopt counts a connection that was chosen before.
func (s *Service) Adopt(endpoint netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[endpoint]++
}

// Disown forgets that an endpoint is a client's, since it does not answer.
func (s *Service) Disown(client netip.Addr, endpoint netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, scope := range scopes {
		if c := (Client{client, scope}); s.clients[c].Endpoint == endpoint {
			delete(s.clients, c)
		}
	}
}

// remembered returns the client's endpoint of a list: the one that it had of this list,
// or else of the other one.
func (s *Service) remembered(client netip.Addr, scope proxy.Scope) (proxy.Endpoint, bool) {
	for _, had := range []proxy.Scope{scope, 1 - scope} {
		r, ok := s.clients[Client{client, had}]
		if !ok || time.Since(r.Used) >= s.row.Affinity {
			continue
		}
		if i, ok := s.place(r.Endpoint, scope); ok {
			return s.row.List(scope)[i], true
		}
	}
	return proxy.Endpoint{}, false
}

// place returns where an endpoint is in a list of the row. There may be thousands of
// endpoints, and a session of each client to be asked about after every change.
func (s *Service) place(endpoint netip.AddrPort, scope proxy.Scope) (int, bool) {
	if s.places[scope] == nil {
		list := s.row.List(scope)
		s.places[scope] = make(map[netip.AddrPort]int, len(list))
		for i, e := range list {
			s.places[scope][e.Addr] = i
		}
	}
	i, ok := s.places[scope][endpoint]
	return i, ok
}

// remember notes a client's endpoint. When there is no room, clients go that are
// due, or else any other one.
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

// pick chooses as the row wants it; whole says that the list is the row's.
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

// leastLoaded returns the endpoint with the fewest connections for its share: the
// first one, if none has fewer.
func (s *Service) leastLoaded(list []proxy.Endpoint, first proxy.Endpoint) proxy.Endpoint {
	for _, e := range list {
		if s.open[e.Addr]*first.Share() < s.open[first.Addr]*e.Share() {
			first = e
		}
	}
	return first
}

// Serves reports whether flows of an endpoint may go on.
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

// Row returns the row; nil: there is none any more.
func (s *Service) Row() *proxy.ServicePort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.row
}

// Remembers returns the endpoint that a client stays with; the zero value: none.
func (s *Service) Remembers(client netip.Addr, scope proxy.Scope) netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.row == nil {
		return netip.AddrPort{}
	}
	e, _ := s.remembered(client, scope)
	return e.Addr
}

// Clients yields the clients that are remembered.
func (s *Service) Clients(yield func(Client, Remembered) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.All(s.clients)(yield)
}

// Recall remembers a client that another process knew.
func (s *Service) Recall(client Client, r Remembered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.row != nil && s.row.Affinity > 0 {
		s.remember(client, r)
	}
}

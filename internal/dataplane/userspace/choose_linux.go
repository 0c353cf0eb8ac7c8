package userspace

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/internal/proxy"
)

const (
	// maxClients bounds the clients that a service remembers for session affinity.
	maxClients = 1 << 16
	// maglevSize is how many places a Maglev table has: a prime, and a hundred
	// times as many as most Services have endpoints.
	maglevSize = 16381
)

// service is a row, and what is remembered of its connections. Any goroutine
// may use it.
type service struct {
	key     proxy.PortKey
	leaving bool // guarded by the index

	mu      sync.Mutex
	row     *proxy.ServicePort // nil: there is none any more
	version atomic.Uint64      // how often the row changed
	turn    uint64             // of round robin
	clients map[netip.Addr]remembered
	open    map[netip.AddrPort]int // connections, by endpoint
	maglev  [2]*maglevTable        // by scope; nil: to be made
}

// remembered is the endpoint of a client that session affinity holds for.
type remembered struct {
	Endpoint netip.AddrPort
	Used     time.Time
}

func newService(key proxy.PortKey) *service {
	return &service{key: key, open: map[netip.AddrPort]int{}}
}

// set makes a row the service's.
func (s *service) set(row *proxy.ServicePort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.row, s.maglev = row, [2]*maglevTable{}
	s.version.Add(1)
	if row == nil || row.Affinity == 0 {
		s.clients = nil
	}
}

// choose returns an endpoint for a connection that those tried failed for, and
// counts the connection until it is released. It reports false if there is none.
func (s *service) choose(client netip.Addr, scope proxy.Scope, tried []netip.AddrPort) (proxy.Endpoint, bool) {
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
	e, known := s.remembered(list, client)
	if !known {
		e = s.pick(list, client, scope, len(tried) == 0)
	}
	if s.row.Affinity > 0 {
		s.remember(client, remembered{e.Addr, time.Now()})
	}
	s.open[e.Addr]++
	return e, true
}

// release ends a connection that choose counted.
func (s *service) release(endpoint netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[endpoint]--; s.open[endpoint] <= 0 {
		delete(s.open, endpoint)
	}
}

// adopt counts a connection that was chosen before.
func (s *service) adopt(endpoint netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[endpoint]++
}

// disown forgets the endpoint of a client, since it does not answer.
func (s *service) disown(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, client)
}

func (s *service) remembered(list []proxy.Endpoint, client netip.Addr) (proxy.Endpoint, bool) {
	r, ok := s.clients[client]
	if !ok || time.Since(r.Used) >= s.row.Affinity {
		return proxy.Endpoint{}, false
	}
	i := slices.IndexFunc(list, func(e proxy.Endpoint) bool { return e.Addr == r.Endpoint })
	if i < 0 {
		return proxy.Endpoint{}, false
	}
	return list[i], true
}

// remember notes a client's endpoint. When there is no room, clients go that are
// due, or else any other one.
func (s *service) remember(client netip.Addr, now remembered) {
	if s.clients == nil {
		s.clients = map[netip.Addr]remembered{}
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
func (s *service) pick(list []proxy.Endpoint, client netip.Addr, scope proxy.Scope, whole bool) proxy.Endpoint {
	switch {
	case s.row.Balancing == proxy.Random:
		return ofShare(list, rand.Uint64())
	case s.row.Balancing == proxy.LeastConnections:
		return slices.MinFunc(list, func(a, b proxy.Endpoint) int { return s.open[a.Addr]*b.Share() - s.open[b.Addr]*a.Share() })
	case s.row.Balancing == proxy.Maglev && whole:
		if s.maglev[scope] == nil {
			s.maglev[scope] = newMaglev(list)
		}
		return s.maglev[scope].of(client)
	case s.row.Balancing == proxy.SourceHash, s.row.Balancing == proxy.Maglev:
		return ofShare(list, hash(client.AsSlice()))
	default:
		s.turn++
		return ofShare(list, s.turn)
	}
}

// serves reports whether flows of an endpoint may go on.
func (s *service) serves(endpoint netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := func(e proxy.Endpoint) bool { return e.Addr == endpoint }
	return s.row != nil && (slices.ContainsFunc(s.row.Cluster, is) || slices.ContainsFunc(s.row.Local, is) ||
		slices.Contains(s.row.Draining, endpoint))
}

// ofShare returns the endpoint that a number falls to, each having as many
// numbers as its share.
func ofShare(list []proxy.Endpoint, number uint64) proxy.Endpoint {
	all := 0
	for _, e := range list {
		all += e.Share()
	}
	left := int(number % uint64(all))
	for _, e := range list {
		if left -= e.Share(); left < 0 {
			return e
		}
	}
	panic("shares do not add up")
}

func hash(b []byte) uint64 {
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// maglevTable has an endpoint for each hash of a client, and is the same on
// every node. The endpoints take turns in claiming the next place of their own
// order that is free, so most places stay as they are when one comes or goes.
type maglevTable struct {
	list   []proxy.Endpoint // sorted
	places []uint16         // which of the list it is, from 1 on
}

func newMaglev(list []proxy.Endpoint) *maglevTable {
	t := &maglevTable{slices.Clone(list), make([]uint16, maglevSize)}
	slices.SortFunc(t.list, func(a, b proxy.Endpoint) int { return a.Addr.Compare(b.Addr) })
	next, step := make([]uint64, len(list)), make([]uint64, len(list))
	for i, e := range t.list {
		h := hash([]byte(e.Addr.String()))
		next[i], step[i] = h>>32%maglevSize, h&0xffffffff%(maglevSize-1)+1
	}
	for free := maglevSize; ; {
		for i, e := range t.list {
			for range e.Share() {
				for t.places[next[i]] != 0 {
					next[i] = (next[i] + step[i]) % maglevSize
				}
				t.places[next[i]] = uint16(i + 1)
				if free--; free == 0 {
					return t
				}
			}
		}
	}
}

func (t *maglevTable) of(client netip.Addr) proxy.Endpoint {
	return t.list[t.places[hash(client.AsSlice())%maglevSize]-1]
}

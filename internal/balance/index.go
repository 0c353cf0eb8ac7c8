package balance

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"sluice/internal/proxy"
)

// frontend is an address and port that clients connect to. A NodePort has the unspecified address
// of its family.
type frontend struct {
	protocol proxy.Protocol
	addr     netip.AddrPort
}

// Index finds the service that a connection is for. Its methods may be called concurrently.
type Index struct {
	Version atomic.Uint64 // incremented whenever a row or a frontend may have changed

	mu        sync.RWMutex
	services  map[proxy.PortKey]*Service
	frontends map[frontend]*Service
}

// NewIndex returns an index without rows.
func NewIndex() *Index {
	return &Index{services: map[proxy.PortKey]*Service{}, frontends: map[frontend]*Service{}}
}

// Find returns the service of a destination, or nil. An exact address takes precedence over a
// NodePort.
func (x *Index) Find(p proxy.Protocol, dst netip.AddrPort) *Service {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if s := x.frontends[frontend{p, dst}]; s != nil {
		return s
	}
	return x.frontends[frontend{p, netip.AddrPortFrom(proxy.FamilyOf(dst.Addr()).Unspecified(), dst.Port())}]
}

// All yields all services. The index is locked meanwhile.
func (x *Index) All(yield func(*Service) bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	maps.Values(x.services)(yield)
}

// Get returns the service of a row, or nil.
func (x *Index) Get(key proxy.PortKey) *Service {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.services[key]
}

// Keys returns the keys of all rows.
func (x *Index) Keys() []proxy.PortKey {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Keys(x.services))
}

// Update changes some rows to what is wanted, in one step. Frontends and services that are no
// longer wanted are still found until remove is called, because rules may redirect connections to
// them until then. remove is nil if there is nothing to remove.
func (x *Index) Update(changed []proxy.PortKey, want map[proxy.PortKey]*proxy.ServicePort) (remove func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.Version.Add(1)
	type former struct {
		*Service
		frontends []proxy.Frontend
	}
	var all []former
	for _, key := range changed {
		s, row := x.services[key], want[key]
		if s != nil {
			if s.row != row && !(row == nil && s.leaving) { // Otherwise nothing changes, or an earlier remove is pending.
				all = append(all, former{s, s.row.Frontends})
			}
			s.leaving = row == nil
		}
		switch {
		case row == nil || s != nil && s.row == row:
			continue
		case s == nil:
			s = NewService(key)
			x.services[key] = s
		}
		s.set(row)
		for _, f := range row.Frontends {
			x.frontends[frontend{key.Protocol, f.Addr}] = s
		}
	}
	if len(all) == 0 {
		return nil
	}
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.Version.Add(1)
		for _, f := range all {
			x.removeOld(f.Service, f.frontends)
		}
	}
}

// removeOld removes those frontends of a service that its row no longer has, and the service if its
// row is no longer wanted.
func (x *Index) removeOld(s *Service, frontends []proxy.Frontend) {
	stays := map[netip.AddrPort]bool{}
	if !s.leaving {
		for _, f := range s.row.Frontends {
			stays[f.Addr] = true
		}
	}
	for _, f := range frontends {
		if key := (frontend{s.Key.Protocol, f.Addr}); x.frontends[key] == s && !stays[f.Addr] {
			delete(x.frontends, key)
		}
	}
	if s.leaving && x.services[s.Key] == s {
		delete(x.services, s.Key)
		s.set(nil)
	}
}

package balance

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"sluice/internal/proxy"
)

// frontend is where a connection was made to.
type frontend struct {
	protocol proxy.Protocol
	at       netip.AddrPort
}

// Index finds the service that a connection is for.
type Index struct {
	mu        sync.RWMutex
	services  map[proxy.PortKey]*Service
	frontends map[frontend]*Service
}

// NewIndex returns an index without rows.
func NewIndex() *Index {
	return &Index{services: map[proxy.PortKey]*Service{}, frontends: map[frontend]*Service{}}
}

// Find returns the service of a frontend, or nil. An exact address comes before
// a NodePort.
func (x *Index) Find(p proxy.Protocol, at netip.AddrPort) *Service {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if s := x.frontends[frontend{p, at}]; s != nil {
		return s
	}
	return x.frontends[frontend{p, netip.AddrPortFrom(proxy.FamilyOf(at.Addr()).Unspecified(), at.Port())}]
}

// All yields the services there are.
func (x *Index) All(yield func(*Service) bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	maps.Values(x.services)(yield)
}

// Of returns the service of a row, or nil.
func (x *Index) Of(key proxy.PortKey) *Service {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.services[key]
}

// Keys returns the rows there are.
func (x *Index) Keys() []proxy.PortKey {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Keys(x.services))
}

// Update makes rows what is wanted, all at once. What leads to them no more is
// found until forget is called: rules may lead there until then. It is nil if there is
// nothing to forget.
func (x *Index) Update(changed []proxy.PortKey, want map[proxy.PortKey]*proxy.ServicePort) (forget func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	type former struct {
		*Service
		frontends []proxy.Frontend
	}
	var all []former
	for _, key := range changed {
		s, row := x.services[key], want[key]
		if s != nil {
			if s.row != row && !(row == nil && s.leaving) { // Else there is nothing to forget, or it is known already.
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
		for _, f := range all {
			x.leave(f.Service, f.frontends)
		}
	}
}

// leave takes away what led to a service and is not of its row any more.
func (x *Index) leave(s *Service, frontends []proxy.Frontend) {
	stays := map[netip.AddrPort]bool{}
	if !s.leaving {
		for _, f := range s.row.Frontends {
			stays[f.Addr] = true
		}
	}
	for _, f := range frontends {
		if at := (frontend{s.Key.Protocol, f.Addr}); x.frontends[at] == s && !stays[f.Addr] {
			delete(x.frontends, at)
		}
	}
	if s.leaving && x.services[s.Key] == s {
		delete(x.services, s.Key)
		s.set(nil)
	}
}

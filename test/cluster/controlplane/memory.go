package controlplane

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"sluice/test/cluster/apiserver"
)

// memory is an API server in memory, for machines on which a real one is too slow. The objects
// survive kill.
type memory struct {
	objects *apiserver.Server
	server  *http.Server // nil if it is down
}

// start serves the objects inside the host.
func (m *memory) start(s Settings) error {
	var ln net.Listener
	err := s.Host.Do(func() (err error) {
		ln, err = net.Listen("tcp", netip.AddrPortFrom(s.Addr, Port).String())
		return err
	})
	if err != nil {
		return fmt.Errorf("start the API server in memory: %w", err)
	}
	m.server = &http.Server{Handler: m.objects}
	go func(s *http.Server) { _ = s.Serve(ln) }(m.server) // until kill
	return nil
}

// kill ends the server and all connections to it.
func (m *memory) kill() {
	if m.server != nil {
		_ = m.server.Close() // closing a listener loses nothing
		m.server = nil
	}
}

// put adds objects in the encoding of a real API server.
func (m *memory) put(entries []Entry) error {
	for _, e := range entries {
		if err := m.objects.Load(e.Value); err != nil {
			return fmt.Errorf("put %s: %w", e.Key, err)
		}
	}
	return nil
}

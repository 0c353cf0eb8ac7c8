package controlplane

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"sluice/test/cluster/apiserver"
)

// memory is an API server that keeps all objects itself, for machines that a real
// one is too heavy for. The objects outlive it.
type memory struct {
	objects *apiserver.Server
	server  *http.Server // nil: it is down
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
	go func(s *http.Server) { _ = s.Serve(ln) }(m.server) // it ends with kill
	return nil
}

// kill ends the server and all connections to it.
func (m *memory) kill() {
	if m.server != nil {
		_ = m.server.Close() // of a listener that nobody needs any more
		m.server = nil
	}
}

// put adds objects that are encoded as a real one keeps them.
func (m *memory) put(entries []Entry) error {
	for _, e := range entries {
		if err := m.objects.Load(e.Value); err != nil {
			return fmt.Errorf("put %s: %w", e.Key, err)
		}
	}
	return nil
}

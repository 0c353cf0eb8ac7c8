package userspace

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// meter counts the traffic of one endpoint of a row, without headers. Workers count while other
// goroutines read.
type meter struct {
	connections, open atomic.Int64
	failed            atomic.Int64 // TCP only
	bytes, packets    [len(proxy.Directions)]atomic.Uint64
}

// meters are the meters of all endpoints that had connections.
type meters struct {
	mu   sync.Mutex
	of   map[meterKey]*meter
	full int // remove unused meters when there are so many, in case nobody reads them
}

// minMeters is the number of meters below which none is removed.
const minMeters = 1024

// meterKey identifies a meter.
type meterKey struct {
	row      proxy.PortKey
	endpoint netip.AddrPort
}

// countConnection counts a new connection and returns the meter of its endpoint. The connection
// counts as open until the caller decrements meter.open.
func (s *server) countConnection(row proxy.PortKey, endpoint netip.AddrPort) *meter {
	s.meters.mu.Lock()
	defer s.meters.mu.Unlock()
	m := s.meterOf(meterKey{row, endpoint})
	m.connections.Add(1)
	m.open.Add(1)
	return m
}

// countFailure counts that an endpoint refused a connection or did not answer; another one
// is tried.
func (s *server) countFailure(row proxy.PortKey, endpoint netip.AddrPort) {
	s.meters.mu.Lock()
	defer s.meters.mu.Unlock()
	s.meterOf(meterKey{row, endpoint}).failed.Add(1)
}

// meterOf returns the meter of an endpoint. The lock of the meters is held.
func (s *server) meterOf(key meterKey) *meter {
	m := &s.meters
	if m.of[key] == nil {
		if len(m.of) >= max(m.full, minMeters) {
			maps.DeleteFunc(m.of, s.unused)
			m.full = 2 * len(m.of)
		}
		m.of[key] = &meter{}
	}
	return m.of[key]
}

// unused reports whether an endpoint no longer serves its row and has no open connection.
func (s *server) unused(key meterKey, m *meter) bool {
	service := s.index.Get(key.row)
	return m.open.Load() == 0 && (service == nil || !service.Serves(key.endpoint))
}

// add counts bytes and packets in one direction.
func (m *meter) add(d proxy.Direction, bytes, packets int) {
	m.bytes[d].Add(uint64(bytes))
	m.packets[d].Add(uint64(packets))
}

// end counts the packets of a TCP connection, as its client socket reports them, and its end.
func (m *meter) end(fd int) {
	if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
		m.add(proxy.In, 0, int(info.Segs_in))
		m.add(proxy.Out, 0, int(info.Segs_out))
	}
	m.open.Add(-1)
}

func (m *meter) traffic() proxy.Traffic {
	t := proxy.Traffic{Connections: uint64(m.connections.Load()), Active: uint64(m.open.Load()), Failed: uint64(m.failed.Load())}
	for d := range proxy.Directions {
		t.Bytes[d], t.Packets[d] = m.bytes[d].Load(), m.packets[d].Load()
	}
	return t
}

// Traffic yields what was relayed and what the rules refused. It drops the counts of endpoints that
// no longer serve.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	d.relayed(yield)
	return d.Dataplane.Traffic(ctx, yield)
}

// relayed yields what was relayed. It holds the lock that new connections need, so yield must not
// block.
func (d *Dataplane) relayed(yield func(proxy.Sample)) {
	all := &d.server.meters
	all.mu.Lock()
	defer all.mu.Unlock()
	for key, m := range all.of {
		if service := d.server.index.Get(key.row); service != nil {
			if row := service.Row(); row != nil && len(row.Frontends) > 0 {
				at := row.Frontends[0].Addr
				yield(proxy.Sample{Protocol: key.row.Protocol, Frontend: at, Endpoint: key.endpoint, Traffic: m.traffic()})
			}
		}
		if d.server.unused(key, m) {
			delete(all.of, key)
		}
	}
}

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

// meter counts what goes to an endpoint of a row and comes back, without headers.
// Workers count while others read.
type meter struct {
	connections, open atomic.Int64
	bytes, packets    [len(proxy.Directions)]atomic.Uint64
}

// meters are those of all endpoints that had connections.
type meters struct {
	mu   sync.Mutex
	of   map[metered]*meter
	full int // at so many those are forgotten that are not needed, as nobody may read them
}

// fewMeters are never looked through.
const fewMeters = 1024

// metered is whose a meter is.
type metered struct {
	row      proxy.PortKey
	endpoint netip.AddrPort
}

// metered counts a connection, until its end.
func (s *server) metered(row proxy.PortKey, endpoint netip.AddrPort) *meter {
	m := &s.meters
	m.mu.Lock()
	defer m.mu.Unlock()
	key := metered{row, endpoint}
	if m.of[key] == nil {
		if len(m.of) >= max(m.full, fewMeters) {
			maps.DeleteFunc(m.of, s.unused)
			m.full = 2 * len(m.of)
		}
		m.of[key] = &meter{}
	}
	m.of[key].connections.Add(1)
	m.of[key].open.Add(1)
	return m.of[key]
}

// unused reports whether an endpoint serves its row no more, and no connection of it.
func (s *server) unused(key metered, m *meter) bool {
	service := s.index.Of(key.row)
	return m.open.Load() == 0 && (service == nil || !service.Serves(key.endpoint))
}

// add counts what went one way.
func (m *meter) add(d proxy.Direction, bytes, packets int) {
	m.bytes[d].Add(uint64(bytes))
	m.packets[d].Add(uint64(packets))
}

// end counts the packets of a TCP connection, which its socket knows, and that it
// has ended.
func (m *meter) end(fd int) {
	if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
		m.add(proxy.In, 0, int(info.Segs_in))
		m.add(proxy.Out, 0, int(info.Segs_out))
	}
	m.open.Add(-1)
}

func (m *meter) traffic() proxy.Traffic {
	t := proxy.Traffic{Connections: uint64(m.connections.Load()), Active: uint64(m.open.Load())}
	for d := range proxy.Directions {
		t.Bytes[d], t.Packets[d] = m.bytes[d].Load(), m.packets[d].Load()
	}
	return t
}

// Traffic yields what was relayed, and what the rules refused. What was counted
// of endpoints goes with them.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	d.relayed(yield)
	return d.Dataplane.Traffic(ctx, yield)
}

// relayed yields what was relayed. New connections wait meanwhile, so it waits for
// nobody.
func (d *Dataplane) relayed(yield func(proxy.Sample)) {
	all := &d.server.meters
	all.mu.Lock()
	defer all.mu.Unlock()
	for key, m := range all.of {
		if service := d.server.index.Of(key.row); service != nil {
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

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// counters holds the counters of virtual servers as last read.
type counters struct {
	mu   sync.Mutex
	last map[ipvs.Server]counted
}

// counted is the counters of a virtual server and of its real servers.
type counted struct {
	stats ipvs.Stats
	reals []ipvs.RealState
}

// busy reports whether any connection was open at the last reading. It may have ended
// since.
func (c *counted) busy(s ipvs.Server) bool {
	return slices.ContainsFunc(c.reals, func(r ipvs.RealState) bool { return open(s, r) > 0 })
}

// open returns how many connections are open. IPVS never counts UDP connections as
// active, so all that it remembers count.
func open(s ipvs.Server, r ipvs.RealState) uint64 {
	if proxy.Protocol(s.Protocol) == proxy.UDP {
		return uint64(r.Connections)
	}
	return uint64(r.Active)
}

// Traffic yields the traffic of virtual servers and what the rules refused. It lists
// the real servers only of virtual servers that were used since the last call, or had
// open connections then. Traffic of NodePorts is left to connection tracking, since
// rules translate it.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	return errors.Join(d.counters.read(ctx, d.kernel.counted, yield), d.Dataplane.Traffic(ctx, yield))
}

func (c *counters) read(ctx context.Context, k ipvs.Interface, yield func(proxy.Sample)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, err := k.Counted(ctx)
	if err != nil {
		return fmt.Errorf("read the counters of IPVS: %w", err)
	}
	now := map[ipvs.Server]counted{}
	for s, stats := range all {
		if a := s.Addr.Addr(); stats == (ipvs.Stats{}) || a == aliases[proxy.FamilyOf(a)] {
			continue
		}
		n := c.last[s]
		if n.stats != stats || n.busy(s) {
			if n.reals, err = k.Reals(ctx, s); err != nil {
				return fmt.Errorf("read the counters of IPVS: %w", err)
			}
		}
		now[s] = counted{stats, n.reals}
		for _, r := range n.reals {
			yield(proxy.Sample{
				Protocol: proxy.Protocol(s.Protocol), Frontend: s.Addr, Endpoint: r.Addr,
				Traffic: proxy.Traffic{Connections: r.Stats.Connections, Active: open(s, r), Bytes: r.Stats.Bytes, Packets: r.Stats.Packets},
			})
		}
	}
	c.last = now
	return nil
}

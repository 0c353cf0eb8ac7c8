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

// counters are what IPVS had counted when it was last asked.
type counters struct {
	mu   sync.Mutex
	last map[ipvs.Server]counted
}

// counted is what a virtual server and its real servers were used for when they
// were last looked at.
type counted struct {
	stats ipvs.Stats
	reals []ipvs.RealState
}

// busy reports whether connections were open, which may have ended since.
func (c *counted) busy(s ipvs.Server) bool {
	return slices.ContainsFunc(c.reals, func(r ipvs.RealState) bool { return open(s, r) > 0 })
}

// open returns how many connections are open. To IPVS none of UDP is, but for as
// long as it is remembered.
func open(s ipvs.Server, r ipvs.RealState) uint64 {
	if proxy.Protocol(s.Protocol) == proxy.UDP {
		return uint64(r.Connections)
	}
	return uint64(r.Active)
}

// Traffic yields what went through virtual servers, and what the rules refused.
// Real servers are listed where something has happened since the last time. What
// comes to NodePorts is known to connection tracking, since rules lead it here.
func (d *Dataplane) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	return errors.Join(d.counters.read(ctx, d.kernel.counted, yield), d.Dataplane.Traffic(ctx, yield))
}

func (c *counters) read(ctx context.Context, k ipvs.Interface, yield func(proxy.Sample)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, err := k.Counted(ctx)
	if err != nil {
		return fmt.Errorf("read what IPVS has counted: %w", err)
	}
	now := map[ipvs.Server]counted{}
	for s, stats := range all {
		if a := s.Addr.Addr(); stats == (ipvs.Stats{}) || a == aliases[proxy.FamilyOf(a)] {
			continue
		}
		n := c.last[s]
		if n.stats != stats || n.busy(s) {
			if n.reals, err = k.Reals(ctx, s); err != nil {
				return fmt.Errorf("read what IPVS has counted: %w", err)
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

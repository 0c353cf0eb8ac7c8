package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/kernel/ipvs"
)

// draining holds, by virtual server, the real servers to remove once they have no
// connections. The zero address stands for the virtual server itself, which is removed
// after its real servers.
type draining map[ipvs.Server]map[netip.AddrPort]bool

func (all draining) add(x id) {
	if all[x.server] == nil {
		all[x.server] = map[netip.AddrPort]bool{}
	}
	all[x.server][x.real] = true
}

// remove takes a server out of the set.
func (all draining) remove(x id) {
	if delete(all[x.server], x.real); len(all[x.server]) == 0 {
		delete(all, x.server)
	}
}

const (
	drainEvery  = 2 * time.Second // the interval of checks for ended connections
	drainAtOnce = 100             // how many virtual servers one check looks at
)

// wake lets Run add the addresses to the link that have only routes.
func (d *Dataplane) wake() {
	if len(d.routed) > 0 {
		select {
		case d.bound <- struct{}{}:
		default: // it has a token already
		}
	}
}

// Run adds addresses to the link, and removes draining servers once they have no
// connections, until ctx ends.
func (d *Dataplane) Run(ctx context.Context) error {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.bound:
			d.addRouted(ctx)
		case <-tick.C:
			if err := d.drain(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(4).Info("Could not remove servers without connections, will retry", "err", err)
			}
		}
	}
}

// drain checks some virtual servers. Map iteration order is random, so each gets its
// turn.
func (d *Dataplane) drain(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ops []ipvs.Op
	looked := 0
	for s, l := range d.drained {
		if looked++; looked > drainAtOnce {
			break
		}
		reals, err := d.kernel.servers.Reals(ctx, s)
		if err != nil {
			return errors.Join(err, d.remove(ctx, ops))
		}
		busy := func(real netip.AddrPort) bool {
			return slices.ContainsFunc(reals, func(r ipvs.RealState) bool { return r.Connections > 0 && (r.Addr == real || !real.IsValid()) })
		}
		for _, real := range slices.SortedFunc(maps.Keys(l), func(a, b netip.AddrPort) int { return b.Compare(a) }) { // the virtual server last
			if !busy(real) {
				ops = append(ops, ipvs.Op{Verb: ipvs.Delete, Server: s, Real: ipvs.Real{Addr: real}})
				d.drained.remove(id{s, real})
			}
		}
	}
	return d.remove(ctx, ops)
}

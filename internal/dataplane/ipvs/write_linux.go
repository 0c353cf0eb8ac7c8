package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// objects says what objects are to the differ.
func (d *Dataplane) objects() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: func(*proxy.State, func(id, value)) {},
		Row:      d.row,
		Same:     func(a, b value) bool { return a == b },
		Sharing:  func(id) differ.Sharing { return differ.Unshared },
		Order: func(_ *changes, c *change) differ.Order {
			if c.ID.real.IsValid() {
				return differ.Order{Rank: 1}
			}
			return differ.Order{}
		},
		Size:  func(*change) int { return 1 },
		Limit: func() int { return math.MaxInt },
		List:  d.list,
		Write: d.write,
	}
}

// list prepares the host and gives the virtual servers at addresses of our link.
func (d *Dataplane) list(ctx context.Context, _ *proxy.State, have func(id, value)) (rest func() error, empty bool, err error) {
	if err := d.prepare(ctx); err != nil {
		return nil, false, err
	}
	if err := d.listAddresses(); err != nil {
		return nil, false, err
	}
	servers, err := d.kernel.servers.Servers(ctx)
	if err != nil {
		return nil, false, err
	}
	d.foreign, d.drained = map[ipvs.Server]bool{}, draining{}
	for s, settings := range servers {
		at := d.ours[s.Addr.Addr()]
		if at == nil {
			d.foreign[s] = true
			continue
		}
		at[s] = true
		have(id{server: s}, value{settings: settings})
		reals, err := d.kernel.servers.Reals(ctx, s)
		if err != nil {
			return nil, false, err
		}
		for _, r := range reals {
			if r.Weight == 0 && !ends(s) {
				d.drained.add(id{s, r.Addr})
			} else {
				have(id{s, r.Addr}, value{weight: r.Weight, foreign: r.Foreign})
			}
		}
	}
	return nil, false, nil
}

// listAddresses finds out which addresses are on our link and which on others.
func (d *Dataplane) listAddresses() error {
	on, err := d.kernel.link.List()
	if err != nil {
		return err
	}
	all, err := d.kernel.addrs()
	if err != nil {
		return err
	}
	d.ours, d.local = map[netip.Addr]map[ipvs.Server]bool{}, map[netip.Addr]bool{}
	links := map[netip.Addr]int{}
	for _, a := range all {
		links[a]++
	}
	for _, a := range on {
		d.ours[a] = map[ipvs.Server]bool{}
		links[a]--
	}
	for a, n := range links {
		d.local[a] = n > 0
	}
	for _, f := range d.families {
		if err := d.bind(aliases[f]); err != nil {
			return err
		}
	}
	return nil
}

// bind puts an address on our link, unless it is there.
func (d *Dataplane) bind(a netip.Addr) error {
	if d.ours[a] != nil {
		return nil
	}
	if err := d.kernel.link.Add(a); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	d.ours[a] = map[ipvs.Server]bool{}
	return nil
}

// unbind takes an address from our link if no server needs it.
func (d *Dataplane) unbind(a netip.Addr) error {
	if servers, ok := d.ours[a]; !ok || len(servers) > 0 || aliases[proxy.FamilyOf(a)] == a || d.excluded(a) {
		return nil
	}
	if err := d.kernel.link.Remove(a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	delete(d.ours, a)
	return nil
}

// write makes what comes, be it there or not: what is refused is tried again
// without the rows concerned. What goes waits for [Dataplane.leave].
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	d.leaving = nil
	var servers, reals []*change
	refusal := &differ.Refusal[id, value]{}
	for _, c := range some {
		if !c.Has {
			d.leaving = append(d.leaving, c)
		} else if err := d.bind(c.ID.server.Addr.Addr()); err != nil {
			refusal.Failures = append(refusal.Failures, failure{Change: c, Err: err})
		} else if c.ID.real.IsValid() {
			reals = append(reals, c)
		} else {
			servers = append(servers, c)
		}
	}
	for _, coming := range [][]*change{servers, reals} {
		if err := d.add(ctx, coming, refusal); err != nil {
			return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
		}
	}
	if len(refusal.Failures) > 0 {
		return refusal
	}
	return nil
}

// add carries out what comes, and collects what is refused. A virtual server
// that is another program's gets no real servers.
func (d *Dataplane) add(ctx context.Context, coming []*change, refusal *differ.Refusal[id, value]) error {
	coming = slices.DeleteFunc(coming, func(c *change) bool { return c.ID.real.IsValid() && !d.has(c.ID.server) })
	ops := make([]ipvs.Op, len(coming))
	for i, c := range coming {
		ops[i] = ipvs.Op{Server: c.ID.server, Settings: c.New.settings, Real: ipvs.Real{Addr: c.ID.real, Weight: c.New.weight}}
		if c.Had || !c.ID.real.IsValid() && d.has(c.ID.server) {
			ops[i].Verb = ipvs.Set
		}
		d.drained.remove(c.ID)
	}
	refused, err := d.kernel.servers.Do(ctx, ops)
	if err != nil {
		return err
	}
	var again []*change
	for i, c := range coming {
		switch s, err := c.ID.server, refused[i]; {
		case err == nil:
			d.ours[s.Addr.Addr()][s] = true
		case c.ID.real.IsValid() && errors.Is(err, unix.EEXIST): // it drains, or an earlier try added it
			again = append(again, &change{ID: c.ID, New: c.New, Had: true, Has: true})
		default:
			refusal.Failures = append(refusal.Failures, d.failure(c, err))
		}
	}
	if len(again) == 0 {
		return nil
	}
	return d.add(ctx, again, refusal)
}

// has reports whether a virtual server is there and ours.
func (d *Dataplane) has(s ipvs.Server) bool { return d.ours[s.Addr.Addr()][s] }

type failure = differ.Failure[id, value]

// failure says why something could not come.
func (d *Dataplane) failure(c *change, err error) failure {
	f := failure{Change: c, Err: err}
	switch s := c.ID.server; {
	case c.ID.real.IsValid(), errors.Is(err, unix.ESRCH):
		f.Drift = errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT)
	case errors.Is(err, unix.EEXIST):
		f.Err = errForeign(s)
	case errors.Is(err, unix.ENOENT):
		f.Err = errScheduler(c.New.settings.Scheduler)
	}
	if !c.ID.real.IsValid() && !f.Drift {
		f.Err = errors.Join(f.Err, d.unbind(c.ID.server.Addr.Addr()))
	}
	return f
}

// leave has what goes go: virtual servers at once, and with them all their real
// servers; else real servers of TCP when they have no connections.
func (d *Dataplane) leave(ctx context.Context) error {
	var ops []ipvs.Op
	gone := map[ipvs.Server]bool{}
	for _, c := range d.leaving {
		s, real := c.ID.server, ipvs.Real{Addr: c.ID.real}
		switch {
		case !real.Addr.IsValid(): // it comes before its real servers
			gone[s] = true
			if !d.excluded(s.Addr.Addr()) {
				ops = append(ops, ipvs.Op{Verb: ipvs.Delete, Server: s})
				d.drained.remove(c.ID)
			}
		case gone[s]:
		case ends(s):
			ops = append(ops, ipvs.Op{Verb: ipvs.Delete, Server: s, Real: real})
		default:
			ops = append(ops, ipvs.Op{Verb: ipvs.Set, Server: s, Real: real})
			d.drained.add(c.ID)
		}
	}
	d.leaving = nil
	return d.remove(ctx, ops)
}

// remove carries out operations that take something away. What is gone is no
// error.
func (d *Dataplane) remove(ctx context.Context, ops []ipvs.Op) error {
	refused, err := d.kernel.servers.Do(ctx, ops)
	for i, o := range ops {
		if e := refused[i]; e != nil && !errors.Is(e, unix.ESRCH) && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, e)
		} else if at := o.Server.Addr.Addr(); err == nil && o.Verb == ipvs.Delete && !o.Real.Addr.IsValid() {
			delete(d.ours[at], o.Server)
			err = d.unbind(at)
		}
	}
	return err
}

// excluded reports whether what is at an address is not ours to remove.
func (d *Dataplane) excluded(a netip.Addr) bool {
	return slices.ContainsFunc(d.options.ExcludeCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// ends reports whether flows to a real server end when it goes.
func ends(s ipvs.Server) bool { return proxy.Protocol(s.Protocol).EndsStaleFlows() }

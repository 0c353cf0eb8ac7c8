package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

type failure = differ.Failure[id, value]

// objects describes the mode to the differ.
func (d *Dataplane) objects() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: func(*proxy.State, func(id, value)) {},
		Row:      d.row,
		Same:     func(a, b value) bool { return a == b },
		Sharing:  func(id) differ.Sharing { return differ.Unshared },
		Order:    func(*changes, *change) differ.Order { return differ.Order{} }, // write orders changes itself
		Live:     1,
		Size:     func(*change) int { return 1 },
		Limit:    d.limit,
		List:     d.list,
		Write:    d.write,

		Read: d.read, Difference: difference,
	}
}

// changesAtOnce is how many changes a Sync renders before it writes them if there is
// no server of ours yet, so that the first ones serve early.
const changesAtOnce = 4096

func (d *Dataplane) limit() int {
	if d.empty {
		return changesAtOnce
	}
	return math.MaxInt
}

// list prepares the host and lists the virtual servers at addresses of our link.
func (d *Dataplane) list(ctx context.Context, _ *proxy.State, have func(id, value)) (rest func() error, empty bool, err error) {
	on, routed, servers, err := d.kernel.list(ctx, d.prepare(ctx))
	if err != nil {
		return nil, false, err
	}
	if err = d.listAddresses(on, routed); err != nil {
		return nil, false, err
	}
	was := d.relays
	if d.relays, err = d.kernel.relays(); err == nil && d.relays && !was {
		klog.FromContext(ctx).Info("Rules choose endpoints until the previous daemon in mode userspace exits, then IPVS does")
	}
	d.foreign, d.drained, d.empty = map[netip.Addr]map[ipvs.Server]bool{}, draining{}, true
	for s, settings := range servers {
		at := s.Addr.Addr()
		if d.ours[at] == nil {
			if d.foreign[at] == nil {
				d.foreign[at] = map[ipvs.Server]bool{}
			}
			d.foreign[at][s] = true
			continue
		}
		d.ours[at][s], d.empty = true, false
		have(id{server: s}, value{settings: settings})
		reals, failed := d.kernel.servers.Reals(ctx, s)
		err = errors.Join(err, failed)
		for _, r := range reals {
			if x := (id{s, r.Addr}); r.Weight == 0 && !ends(s) {
				d.drained.add(x)
			} else {
				have(x, value{weight: r.Weight})
			}
		}
	}
	return nil, d.empty, err
}

// listAddresses records which addresses are on our link, given as on, or have only routes
// to it, and which are on other links. It binds the aliases, and addresses that another
// process removed: without their addresses, our own servers would count as another
// program's.
func (d *Dataplane) listAddresses(on, routed []netip.Addr) error {
	all, err := d.kernel.addrs()
	previous := d.ours
	d.ours, d.routed, d.local = map[netip.Addr]map[ipvs.Server]bool{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}
	links := map[netip.Addr]int{}
	for _, a := range all {
		links[a]++
	}
	for _, a := range routed {
		d.own(a, false)
	}
	for _, a := range on {
		d.own(a, true)
		links[a]--
	}
	for a, n := range links {
		d.local[a] = n > 0
	}
	for _, f := range d.families {
		// With the last IPv4 address of a link the kernel removes all its routes, so the alias is added first and stays.
		if a := aliases[f]; d.ours[a] == nil || d.routed[a] {
			err = errors.Join(err, d.kernel.link.Add(a)[a])
			d.own(a, true)
		}
	}
	needed := map[netip.Addr]bool{}
	for a, servers := range previous {
		if len(servers) > 0 && !d.local[a] {
			needed[a] = true
		}
	}
	for _, why := range d.bind(needed) {
		err = errors.Join(err, why)
	}
	return err
}

// write makes additions and changes, and leaves removals to [Dataplane.leave]. If the
// kernel refuses some of them, write undoes the others and returns a Refusal, so that
// the differ tries again without the rows concerned.
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	coming, added := map[ipvs.Server][]*change{}, map[ipvs.Server]bool{}
	var servers []ipvs.Server
	d.leaving = nil
	for _, c := range some {
		s := c.ID.server
		if !c.Has {
			d.leaving = append(d.leaving, c)
			continue
		}
		if coming[s] == nil {
			servers, added[s] = append(servers, s), !d.owns(s)
		}
		coming[s] = append(coming[s], c)
	}
	failures, err := d.writeAll(ctx, servers, coming)
	if err == nil && len(failures) > 0 {
		d.leaving = nil
		err = d.undo(ctx, some, added)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	if len(failures) == 0 {
		return nil
	}
	for i, f := range failures {
		failures[i].Err = errors.Join(f.Err, d.unbind(f.Change.ID.server.Addr.Addr()))
	}
	return &differ.Refusal[id, value]{Failures: failures}
}

// undo removes the virtual servers that were added, and undoes additions to the others
// and changes.
func (d *Dataplane) undo(ctx context.Context, some []*change, added map[ipvs.Server]bool) error {
	var ops []ipvs.Op
	for s, isNew := range added {
		if isNew && d.owns(s) {
			ops = append(ops, ipvs.Op{Verb: ipvs.Delete, Server: s})
		}
	}
	for _, c := range some {
		switch s := c.ID.server; {
		case !c.Has || added[s]:
		case c.Had:
			ops = append(ops, ipvs.Op{Verb: ipvs.Set, Server: s, Settings: c.Old.settings, Real: ipvs.Real{Addr: c.ID.real, Weight: c.Old.weight}})
		default:
			d.leaving = append(d.leaving, &change{ID: c.ID, Old: c.New, Had: true})
		}
	}
	return errors.Join(d.remove(ctx, ops), d.leave(ctx))
}

// writeAll writes virtual servers in parts, after binding the addresses of some parts.
func (d *Dataplane) writeAll(ctx context.Context, servers []ipvs.Server, coming map[ipvs.Server][]*change) (failures []failure, err error) {
	for parts := range slices.Chunk(servers, bindAtOnce) {
		addrs := map[netip.Addr]bool{}
		for _, s := range parts {
			addrs[s.Addr.Addr()] = true
		}
		refused := d.bind(addrs)
		for some := range slices.Chunk(parts, serversAtOnce) {
			more, err := d.writeServers(ctx, some, coming, refused)
			if err != nil {
				return nil, err
			}
			failures = append(failures, more...)
		}
	}
	return failures, nil
}

// writeServers writes some virtual servers, and then the real servers of those that are
// ours. Those whose address was refused are failures.
func (d *Dataplane) writeServers(ctx context.Context, some []ipvs.Server, coming map[ipvs.Server][]*change, refused map[netip.Addr]error) (failures []failure, err error) {
	for _, real := range []bool{false, true} {
		var list []*change
		for _, s := range some {
			why := refused[s.Addr.Addr()]
			if real && why == nil && !d.owns(s) {
				continue // the kernel refused it, or it is another program's
			}
			for _, c := range coming[s] {
				switch {
				case c.ID.real.IsValid() != real:
				case why != nil:
					failures = append(failures, failure{Change: c, Err: why, Drift: errors.Is(why, unix.ENODEV)})
				default:
					list = append(list, c)
				}
			}
		}
		more, err := d.add(ctx, list)
		if err != nil {
			return nil, err
		}
		failures = append(failures, more...)
	}
	return failures, nil
}

// serversAtOnce is how many virtual servers are added before their real servers. It is
// small because a virtual server without real servers refuses connections that already
// reach IPVS, as those of mode userspace do. Real servers are not in the same batch,
// because only a virtual server that was added gets some.
const serversAtOnce = 16

// bindAtOnce is how many addresses are bound at once, so that the request fits any socket buffer, and the
// kernel gets some IPv6 addresses ready while others are waited for.
const bindAtOnce = 16 * serversAtOnce

// owns reports whether a virtual server exists and is ours.
func (d *Dataplane) owns(s ipvs.Server) bool { return d.ours[s.Addr.Addr()][s] }

// add adds or changes servers, and returns those that the kernel refused.
func (d *Dataplane) add(ctx context.Context, coming []*change) (failures []failure, err error) {
	ops := make([]ipvs.Op, len(coming))
	for i, c := range coming {
		ops[i] = ipvs.Op{Server: c.ID.server, Settings: c.New.settings, Real: ipvs.Real{Addr: c.ID.real, Weight: c.New.weight}}
		if c.Had || !c.ID.real.IsValid() && d.owns(c.ID.server) {
			ops[i].Verb = ipvs.Set
		}
		d.drained.remove(c.ID)
	}
	refused, err := d.kernel.servers.Do(ctx, ops)
	var again []*change
	for i, c := range coming {
		switch s, why := c.ID.server, refused[i]; {
		case err != nil:
			return nil, err
		case why == nil && c.ID.real.IsValid():
		case why == nil:
			d.ours[s.Addr.Addr()][s] = true
		case c.ID.real.IsValid() && errors.Is(why, unix.EEXIST): // it drains, or an earlier attempt added it
			again = append(again, &change{ID: c.ID, New: c.New, Had: true, Has: true})
		case c.ID.real.IsValid() || errors.Is(why, unix.ESRCH):
			failures = append(failures, failure{Change: c, Err: why, Drift: errors.Is(why, unix.ESRCH) || errors.Is(why, unix.ENOENT)})
		case errors.Is(why, unix.EEXIST):
			failures = append(failures, failure{Change: c, Err: errForeign(s)})
		case errors.Is(why, unix.ENOENT):
			failures = append(failures, failure{Change: c, Err: errScheduler(c.New.settings.Scheduler)})
		default:
			failures = append(failures, failure{Change: c, Err: why})
		}
	}
	if len(again) > 0 {
		more, err := d.add(ctx, again)
		return append(failures, more...), err
	}
	return failures, nil
}

// leave makes the removals that write left. Real servers of TCP drain until they have
// no connections, and their virtual servers after them. If no frontend is left at an
// address, everything there is removed at once: the address then belongs to nobody, and
// no rule filters what is sent to it.
func (d *Dataplane) leave(ctx context.Context) error {
	var ops []ipvs.Op
	for _, c := range d.leaving {
		if !c.ID.real.IsValid() {
			d.drained.add(c.ID)
		}
	}
	gone := map[ipvs.Server]bool{}
	for _, c := range d.leaving { // virtual servers are before their real servers
		s, virtual, o := c.ID.server, !c.ID.real.IsValid(), ipvs.Op{Verb: ipvs.Delete, Server: c.ID.server, Real: ipvs.Real{Addr: c.ID.real}}
		switch at := s.Addr.Addr(); {
		case gone[s], virtual && !ends(s) && (d.left[s] || d.serves(at)):
			continue
		case virtual:
			if gone[s] = true; d.excluded(at) {
				continue
			}
			if !d.serves(at) {
				ops = append(ops, d.rest(at, gone)...)
			}
		case !ends(s):
			o.Verb = ipvs.Set
			d.drained.add(c.ID)
		}
		ops = append(ops, o)
	}
	for s := range gone {
		delete(d.drained, s)
	}
	d.leaving = nil
	return d.remove(ctx, ops)
}

// serves reports whether any virtual server at an address stays.
func (d *Dataplane) serves(at netip.Addr) bool {
	for s := range d.ours[at] {
		if !d.drained[s][netip.AddrPort{}] {
			return true
		}
	}
	return false
}

// rest returns the removal of servers that drain at an address, except those whose
// frontend the rules serve now.
func (d *Dataplane) rest(at netip.Addr, gone map[ipvs.Server]bool) (ops []ipvs.Op) {
	for s := range d.ours[at] {
		if !gone[s] && !d.left[s] {
			gone[s] = true
			ops = append(ops, ipvs.Op{Verb: ipvs.Delete, Server: s})
		}
	}
	return ops
}

// remove carries out operations that delete or drain servers. A server that does not
// exist is no error. An address is removed with its last virtual server.
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

// excluded reports whether the configuration (excludeCIDRs) forbids us to remove what
// is at an address.
func (d *Dataplane) excluded(a netip.Addr) bool {
	return proxy.Contains(d.options.ExcludeCIDRs, a)
}

// ends reports whether the flows to a real server end when it is removed.
func ends(s ipvs.Server) bool { return proxy.Protocol(s.Protocol).EndsStaleFlows() }

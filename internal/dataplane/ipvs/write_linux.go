package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// objects says what objects are to the differ.
func (d *Dataplane) objects() differ.Mode[id, value] {
	return differ.Mode[id, value]{
		Constant: func(*proxy.State, func(id, value)) {},
		Row:      d.row,
		Same:     func(a, b value) bool { return a == b },
		Sharing:  func(id) differ.Sharing { return differ.Unshared },
		Order:    func(*changes, *change) differ.Order { return differ.Order{} }, // write knows it
		Live:     1,
		Size:     func(*change) int { return 1 },
		Limit:    d.limit,
		List:     d.list,
		Write:    d.write,

		Read: d.read, Difference: difference,
	}
}

// changesAtOnce is how many changes are rendered before they are written, where
// nothing is there that one of them could be about.
const changesAtOnce = 4096

func (d *Dataplane) limit() int {
	if d.empty {
		return changesAtOnce
	}
	return math.MaxInt
}

// rank has virtual servers come before real servers.
func rank(c *change) int {
	if c.ID.real.IsValid() {
		return 1
	}
	return 0
}

// list prepares the host and gives the virtual servers at addresses of our link.
func (d *Dataplane) list(ctx context.Context, _ *proxy.State, have func(id, value)) (rest func() error, empty bool, err error) {
	on, servers, err := d.kernel.list(ctx, d.prepare(ctx))
	if err != nil {
		return nil, false, err
	}
	if err = d.listAddresses(on); err != nil {
		return nil, false, err
	}
	was := d.relays
	if d.relays, err = d.kernel.relays(); err == nil && d.relays && !was {
		klog.FromContext(ctx).Info("Rules choose endpoints, and IPVS does when the former daemon in mode userspace has ended")
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

// listAddresses finds out which addresses the host has on other links than ours,
// and makes sure of the aliases, and of what another process took from our link:
// without their addresses our own servers would be another program's.
func (d *Dataplane) listAddresses(on []netip.Addr) error {
	all, err := d.kernel.addrs()
	former := d.ours
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
	needed := map[netip.Addr]bool{}
	for _, f := range d.families {
		needed[aliases[f]] = true
	}
	for a, servers := range former {
		if len(servers) > 0 && !d.local[a] {
			needed[a] = true
		}
	}
	for _, why := range d.bind(needed) {
		err = errors.Join(err, why)
	}
	return err
}

// bind puts those of some addresses on our link that are not there, and returns why
// it could not.
func (d *Dataplane) bind(some map[netip.Addr]bool) (refused map[netip.Addr]error) {
	return d.binding(some)()
}

// binding does what bind does, beside its caller until that one waits.
func (d *Dataplane) binding(some map[netip.Addr]bool) (wait func() (refused map[netip.Addr]error)) {
	var missing []netip.Addr
	for a := range some {
		if d.ours[a] == nil {
			missing = append(missing, a)
		}
	}
	if len(missing) == 0 {
		return func() map[netip.Addr]error { return nil }
	}
	added := make(chan map[netip.Addr]error, 1)
	go func() { added <- d.kernel.link.Add(missing...) }()
	return func() map[netip.Addr]error {
		refused := <-added
		maps.DeleteFunc(refused, func(_ netip.Addr, why error) bool { return errors.Is(why, unix.EEXIST) })
		for _, a := range missing {
			if refused[a] == nil {
				d.ours[a] = map[ipvs.Server]bool{}
			}
		}
		return refused
	}
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

// write makes what comes, be it there or not: what is refused is tried again without
// the rows concerned, of which no virtual server stays that was not there before. What
// goes waits for [Dataplane.leave].
func (d *Dataplane) write(ctx context.Context, some []*change) error {
	coming := map[ipvs.Server][]*change{}
	var servers []ipvs.Server
	var undo []ipvs.Op
	d.leaving = nil
	for _, c := range some {
		s := c.ID.server
		switch {
		case !c.Has:
			d.leaving = append(d.leaving, c)
			continue
		case coming[s] == nil:
			servers = append(servers, s)
			if !d.ours[s.Addr.Addr()][s] {
				undo = append(undo, ipvs.Op{Verb: ipvs.Delete, Server: s})
			}
		}
		coming[s] = append(coming[s], c)
	}
	failures, err := d.writeAll(ctx, servers, coming)
	if err != nil {
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	if len(failures) == 0 {
		return nil
	}
	d.leaving = nil
	undo = slices.DeleteFunc(undo, func(o ipvs.Op) bool { return !d.ours[o.Server.Addr.Addr()][o.Server] })
	if err := d.remove(ctx, undo); err != nil {
		return fmt.Errorf("%w: %w", proxy.ErrNeedSync, err)
	}
	for i, f := range failures {
		failures[i].Err = errors.Join(f.Err, d.unbind(f.Change.ID.server.Addr.Addr()))
	}
	return &differ.Refusal[id, value]{Failures: failures}
}

// writeAll makes what comes of virtual servers: their addresses, then themselves, then
// their real servers. The next addresses come beside that: for each the kernel looks at
// all that the link has.
func (d *Dataplane) writeAll(ctx context.Context, servers []ipvs.Server, coming map[ipvs.Server][]*change) (failures []failure, err error) {
	parts := append(slices.Collect(slices.Chunk(servers, serversAtOnce)), nil) // nothing comes after the last
	bound := d.binding(addressesOf(parts[0]))
	for i, some := range parts[:len(parts)-1] {
		refused := bound()
		bound = d.binding(addressesOf(parts[i+1]))
		more, err := d.writeServers(ctx, some, coming, refused)
		if err != nil {
			bound()
			return nil, err
		}
		failures = append(failures, more...)
	}
	return failures, nil
}

func addressesOf(servers []ipvs.Server) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, s := range servers {
		all[s.Addr.Addr()] = true
	}
	return all
}

// writeServers makes what comes of some virtual servers, unless their addresses were
// refused.
func (d *Dataplane) writeServers(ctx context.Context, some []ipvs.Server, coming map[ipvs.Server][]*change, refused map[netip.Addr]error) (failures []failure, err error) {
	var lists [2][]*change // by rank
	for _, s := range some {
		for _, c := range coming[s] {
			if why := refused[s.Addr.Addr()]; why != nil {
				failures = append(failures, failure{Change: c, Err: why})
			} else {
				lists[rank(c)] = append(lists[rank(c)], c)
			}
		}
	}
	for _, list := range lists {
		more, err := d.add(ctx, list)
		if err != nil {
			return nil, err
		}
		failures = append(failures, more...)
	}
	return failures, nil
}

// serversAtOnce is how many virtual servers are made before their real servers:
// one without any refuses what comes by IPVS already, as from mode userspace.
// Only one that was made gets real servers, so both do not go in one batch.
const serversAtOnce = 16

// add carries out what comes, and returns what is refused. A virtual server that
// is another program's gets no real servers.
func (d *Dataplane) add(ctx context.Context, coming []*change) (failures []failure, err error) {
	has := func(s ipvs.Server) bool { return d.ours[s.Addr.Addr()][s] }
	coming = slices.DeleteFunc(coming, func(c *change) bool { return c.ID.real.IsValid() && !has(c.ID.server) })
	ops := make([]ipvs.Op, len(coming))
	for i, c := range coming {
		ops[i] = ipvs.Op{Server: c.ID.server, Settings: c.New.settings, Real: ipvs.Real{Addr: c.ID.real, Weight: c.New.weight}}
		if c.Had || !c.ID.real.IsValid() && has(c.ID.server) {
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
		case why == nil:
			d.ours[s.Addr.Addr()][s] = true
		case c.ID.real.IsValid() && errors.Is(why, unix.EEXIST): // it drains, or an earlier try added it
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

// leave has what goes go: real servers of TCP when they have no connections, virtual
// servers of TCP after them. Where no frontend is left, all goes at once: nobody has the
// address from then on, and no rule watches over it.
func (d *Dataplane) leave(ctx context.Context) error {
	var ops []ipvs.Op
	for _, c := range d.leaving {
		if rank(c) == 0 {
			d.drained.add(c.ID)
		}
	}
	gone := map[ipvs.Server]bool{}
	for _, c := range d.leaving { // virtual servers come before their real servers
		s, o := c.ID.server, ipvs.Op{Verb: ipvs.Delete, Server: c.ID.server, Real: ipvs.Real{Addr: c.ID.real}}
		switch at := s.Addr.Addr(); {
		case gone[s], rank(c) == 0 && !ends(s) && (d.left[s] || d.serves(at)):
			continue
		case rank(c) == 0:
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

// serves reports whether a virtual server at an address does not go.
func (d *Dataplane) serves(at netip.Addr) bool {
	for s := range d.ours[at] {
		if !d.drained[s][netip.AddrPort{}] {
			return true
		}
	}
	return false
}

// rest removes what drains at an address, unless the rules translate for its frontend now.
func (d *Dataplane) rest(at netip.Addr, gone map[ipvs.Server]bool) (ops []ipvs.Op) {
	for s := range d.ours[at] {
		if !gone[s] && !d.left[s] {
			gone[s] = true
			ops = append(ops, ipvs.Op{Verb: ipvs.Delete, Server: s})
		}
	}
	return ops
}

// remove carries out operations that take something away. What is gone is no
// error. An address goes with its last virtual server.
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
	return proxy.Contains(d.options.ExcludeCIDRs, a)
}

// ends reports whether flows to a real server end when it goes.
func ends(s ipvs.Server) bool { return proxy.Protocol(s.Protocol).EndsStaleFlows() }

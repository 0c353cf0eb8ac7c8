package ipvstest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"sluice/internal/kernel/ipvs"
)

// Fake is IPVS in memory. Unlike [ipvs.Conn] it may be used by several
// goroutines.
type Fake struct {
	mu         sync.Mutex
	servers    map[ipvs.Server]*virtual
	schedulers []string
	refuse     map[ipvs.Server]error
	fail       error
	timeouts   ipvs.Timeouts
	count      Count
	done       []string
}

type virtual struct {
	ipvs.Settings
	reals map[netip.AddrPort]*ipvs.RealState
}

// Count counts the requests to a Fake.
type Count struct {
	Lists int // of virtual servers, or of the real servers of one
	Gets  int // of one virtual server
	Ops   int
}

// NewFake returns a Fake without servers that supports the given schedulers.
func NewFake(schedulers ...string) *Fake {
	return &Fake{servers: map[ipvs.Server]*virtual{}, schedulers: schedulers, refuse: map[ipvs.Server]error{}}
}

// Refuse makes every operation on a virtual server or its real servers fail,
// until err is nil.
func (k *Fake) Refuse(s ipvs.Server, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse[s] = err
}

// Fail makes everything fail, until err is nil. Operations are then not carried out.
func (k *Fake) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fail = err
}

// Connect sets the number of connections of a real server.
func (k *Fake) Connect(s ipvs.Server, real netip.AddrPort, n uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.servers[s].reals[real].Connections = n
}

// Carry sets the open connections and the counters of a real server.
func (k *Fake) Carry(s ipvs.Server, real netip.AddrPort, active uint32, stats ipvs.Stats) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.servers[s].reals[real].Active, k.servers[s].reals[real].Stats = active, stats
}

// Reset returns the counts and the texts of the operations since the last Reset.
func (k *Fake) Reset() (Count, []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	count, done := k.count, k.done
	k.count, k.done = Count{}, nil
	return count, done
}

// Timeouts returns the timeouts that were set last.
func (k *Fake) Timeouts() ipvs.Timeouts {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.timeouts
}

// Servers lists virtual servers.
func (k *Fake) Servers(ctx context.Context) (map[ipvs.Server]ipvs.Settings, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Lists++
	all := map[ipvs.Server]ipvs.Settings{}
	for s, v := range k.servers {
		all[s] = v.Settings
	}
	return all, cmp.Or(k.fail, ctx.Err())
}

// Server returns one virtual server.
func (k *Fake) Server(ctx context.Context, s ipvs.Server) (ipvs.Settings, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Gets++
	v := k.servers[s]
	if v == nil {
		return ipvs.Settings{}, false, cmp.Or(k.fail, ctx.Err())
	}
	return v.Settings, true, cmp.Or(k.fail, ctx.Err())
}

// Counted returns for each virtual server the sum of the counters of its real servers.
func (k *Fake) Counted(ctx context.Context) (map[ipvs.Server]ipvs.Stats, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Lists++
	all := map[ipvs.Server]ipvs.Stats{}
	for s, v := range k.servers {
		var sum ipvs.Stats
		for _, r := range v.reals {
			sum.Connections += r.Stats.Connections
			for d := range sum.Bytes {
				sum.Packets[d] += r.Stats.Packets[d]
				sum.Bytes[d] += r.Stats.Bytes[d]
			}
		}
		all[s] = sum
	}
	return all, cmp.Or(k.fail, ctx.Err())
}

// Reals lists the real servers of a virtual server.
func (k *Fake) Reals(ctx context.Context, s ipvs.Server) (all []ipvs.RealState, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.count.Lists++
	if v := k.servers[s]; v != nil {
		for _, at := range slices.SortedFunc(maps.Keys(v.reals), netip.AddrPort.Compare) {
			all = append(all, *v.reals[at])
		}
	}
	return all, cmp.Or(k.fail, ctx.Err())
}

// Do carries out operations.
func (k *Fake) Do(ctx context.Context, ops []ipvs.Op) (map[int]error, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := cmp.Or(k.fail, ctx.Err()); err != nil {
		return nil, err
	}
	refused := map[int]error{}
	for i, o := range ops {
		k.count.Ops++
		k.done = append(k.done, o.String())
		if err := cmp.Or(k.refuse[o.Server], k.do(o)); err != nil {
			refused[i] = fmt.Errorf("%v: %w", o, err)
		}
	}
	return refused, nil
}

func (k *Fake) do(o ipvs.Op) error {
	v := k.servers[o.Server]
	switch {
	case o.Real.Addr.IsValid() && v == nil:
		return syscall.ESRCH
	case o.Real.Addr.IsValid():
		return v.do(o)
	case o.Verb == ipvs.Add && v != nil:
		return syscall.EEXIST
	case o.Verb != ipvs.Add && v == nil:
		return syscall.ESRCH
	case o.Verb == ipvs.Delete:
		delete(k.servers, o.Server)
	case !slices.Contains(k.schedulers, o.Settings.Scheduler):
		return syscall.ENOENT
	case o.Verb == ipvs.Add:
		k.servers[o.Server] = &virtual{o.Settings, map[netip.AddrPort]*ipvs.RealState{}}
	default:
		v.Settings = o.Settings
	}
	return nil
}

func (v *virtual) do(o ipvs.Op) error {
	real := v.reals[o.Real.Addr]
	switch {
	case o.Verb == ipvs.Add && real != nil:
		return syscall.EEXIST
	case o.Verb != ipvs.Add && real == nil:
		return syscall.ENOENT
	case o.Verb == ipvs.Add:
		v.reals[o.Real.Addr] = &ipvs.RealState{Real: o.Real}
	case o.Verb == ipvs.Set:
		real.Weight = o.Real.Weight
	default:
		delete(v.reals, o.Real.Addr)
	}
	return nil
}

// SetTimeouts remembers them.
func (k *Fake) SetTimeouts(_ context.Context, t ipvs.Timeouts) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timeouts = t
	return k.fail
}

// Close does nothing: the servers stay.
func (k *Fake) Close() error { return nil }

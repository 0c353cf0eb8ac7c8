package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// brief returns a row of the nth short-lived Service.
func brief(n int) *proxy.ServicePort {
	return row("brief", fmt.Sprintf("cluster=10.%d.%d.%d:53 to=10.1.0.1:53", 100+n>>16, n>>8&255, n&255))
}

// kept returns how many frontends and prefixes are watched, and whether all frontends are.
func (b *bench) kept() (frontends, prefixes int, all bool) {
	b.rec.mu.Lock()
	defer b.rec.mu.Unlock()
	w := &b.rec.watch
	return len(w.until), len(w.formerNodePorts), !w.allUntil.IsZero()
}

// TestDumpsFailForAnHour adds and removes Services and changes endpoints and the node's addresses
// while no flow can be dumped. It checks that what is watched stays bounded, and that stale flows
// end afterwards as far as they are known.
func TestDumpsFailForAnHour(t *testing.T) {
	const perSecond, burst = 50, 12 // seconds
	run(t, func(b *bench) {
		spent := time.Duration(0)
		b.rec.settings.ThreadTime = func() time.Duration {
			spent += time.Millisecond
			return spent
		}
		b.settled(row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53"))
		b.kernel.Fail(errors.New("out of order"))
		for n := range 3600 * perSecond {
			b.apply([]*proxy.ServicePort{brief(n)})
			b.apply(nil, b.state.Rows[brief(n).Key])
			if n%perSecond == 0 {
				b.apply([]*proxy.ServicePort{row("dns", fmt.Sprintf("cluster=10.96.0.10:53 to=10.1.0.%d:53", 1+n/perSecond%200))})
				b.applied(&proxy.Delta{Node: nodeWith(fmt.Sprintf("10.%d.%d.0/24", n>>14&255, n>>6&255))})
			}
			if n%(burst*perSecond) == 0 {
				time.Sleep(burst * time.Second)
			}
			if frontends, prefixes, _ := b.kept(); frontends > maxWatched || prefixes > maxFormerNodePorts {
				t.Errorf("after %d Services %d frontends and %d prefixes are kept", n, frontends, prefixes)
				return
			}
		}
		synctest.Wait()
		if c := b.kernel.Reset(); c.Dumps < 3600/burst || c.Dumps > 5*3600/burst {
			t.Errorf("%d dumps in an hour; want some for the changes of every burst", c.Dumps)
		}
		if n := strings.Count(b.log(), "Stale flows may remain, will try again"); n < 100 || n > 150 {
			t.Errorf("%d failures in the log of an hour; want one in half a minute", n)
		}
		last := 3600*perSecond - 1
		b.kernel.Add(flow("10.96.0.10:53", "10.1.0.250:53"), flow(brief(last).Frontends[0].Addr.String(), "10.1.0.1:53"))
		b.kernel.Fail(nil)
		time.Sleep(retryMax)
		b.wantFlows()
		if !strings.Contains(b.log(), "Too many addresses of Services were removed") {
			t.Error("the log does not say that frontends are no longer watched")
		}
		b.settle()
		if frontends, prefixes, all := b.kept(); frontends+prefixes > 0 || all {
			t.Errorf("%d frontends and %d prefixes are kept after all was looked at, all: %t", frontends, prefixes, all)
		}
	})
}

// TestWritesFailForLong checks that a bounded number of frontends of failed writes is kept.
func TestWritesFailForLong(t *testing.T) {
	w := newWatch()
	for n := range maxWatched + 10 {
		w.applying(&proxy.Delta{Upserts: []proxy.Upsert{{New: brief(n)}}})
	}
	if n := len(w.pending.failed); n != maxWatched || w.dropped != 9 {
		t.Errorf("%d frontends are kept and %d forgotten; want %d and 9", n, w.dropped, maxWatched)
	}
}

// TestMoreThanCanBeWatched checks that all frontends are watched together if there are too many,
// and that no flow of another program is ended.
func TestMoreThanCanBeWatched(t *testing.T) {
	run(t, func(b *bench) {
		var rows []*proxy.ServicePort
		for n := range maxWatched + 10 {
			r := brief(n)
			r.Key.Name = fmt.Sprintf("dns-%d", n)
			rows = append(rows, r)
		}
		var right, stale []ct.Flow
		for _, r := range []*proxy.ServicePort{rows[0], rows[maxWatched/2], rows[maxWatched+9]} {
			vip := r.Frontends[0].Addr.String()
			right = append(right, flow(vip, "10.1.0.1:53"))
			stale = append(stale, flow(vip, "10.1.0.2:53"), flow(vip, vip))
		}
		right = append(right, flow("192.0.2.1:53", "10.1.0.2:53"))
		b.kernel.Add(append(right, stale...)...)
		b.apply(rows)
		b.wantFlows(right...)
		b.settle()
		if frontends, _, all := b.kept(); frontends > 0 || all {
			t.Errorf("%d frontends are still watched, all: %t", frontends, all)
		}
		if c := b.kernel.Reset(); c.Dumps != 2 {
			t.Errorf("%d dumps; want 2", c.Dumps)
		}
	})
}

// TestEndedFlowsAreBounded checks that the list of recently ended flows is bounded, should checks
// never succeed because the dumps of one family fail.
func TestEndedFlowsAreBounded(t *testing.T) {
	w := newWatch()
	for n := range 2 * maxWatched {
		f := flow("192.0.2.1:53", "192.0.2.1:53")
		f.Orig.Src = brief(n).Frontends[0].Addr
		w.flowEnded(&f)
	}
	if len(w.recentlyEnded) > maxWatched {
		t.Errorf("%d flows are kept", len(w.recentlyEnded))
	}
}

// TestMoreFlowsThanAreHeld checks that more stale flows than fit in memory are ended in batches,
// one dump for each.
func TestMoreFlowsThanAreHeld(t *testing.T) {
	const flows, atOnce = 10, 4
	run(t, func(b *bench) {
		b.settled(row("dns", "cluster=10.96.0.10:53 to=10.1.0.1:53 to=10.1.0.2:53"))
		b.rec.batch = atOnce
		right := flow("10.96.0.10:53", "10.1.0.2:53")
		b.kernel.Add(right)
		for range flows {
			b.kernel.Add(flow("10.96.0.10:53", "10.1.0.1:53"))
		}
		b.apply([]*proxy.ServicePort{row("dns", "cluster=10.96.0.10:53 to=10.1.0.2:53")})
		b.wantFlows(right)
		if c := b.kernel.Reset(); c.Dumps != 3 || c.Deletes != flows || c.Most != atOnce {
			t.Errorf("%d dumps of at most %d flows, %d deletions; want 3, %d, %d", c.Dumps, c.Most, c.Deletes, atOnce, flows)
		}
		b.settle()
		if c := b.kernel.Reset(); c.Dumps != 1 {
			t.Errorf("%d dumps more; want one, for flows that were under way", c.Dumps)
		}
	})
}

// afterDump calls do once, after the first dump that returns flows.
type afterDump struct {
	ct.Interface
	do func()
}

func (k *afterDump) Dump(ctx context.Context, by ct.Filter, keep func(*ct.Flow) bool) ([]ct.Flow, error) {
	flows, err := k.Interface.Dump(ctx, by, keep)
	if k.do != nil && len(flows) > 0 {
		k.do()
		k.do = nil
	}
	return flows, err
}

// TestFlowsThatBecomeRight checks that a full batch of flows that are no longer stale does not keep
// the flows after them from being ended.
func TestFlowsThatBecomeRight(t *testing.T) {
	run(t, func(b *bench) {
		b.settled(row("a", "cluster=10.96.0.10:53 to=10.1.0.1:53"), row("b", "cluster=10.96.0.11:53 to=10.1.0.1:53"))
		b.rec.batch = 1
		b.rec.settings.Flows = &afterDump{b.kernel, func() {
			b.apply([]*proxy.ServicePort{row("a", "cluster=10.96.0.10:53 to=10.1.0.2:53 to=10.1.0.1:53")})
		}}
		b.apply([]*proxy.ServicePort{row("a", "cluster=10.96.0.10:53 to=10.1.0.2:53"), row("b", "cluster=10.96.0.11:53 to=10.1.0.2:53")})
		synctest.Wait()
		right := flow("10.96.0.10:53", "10.1.0.1:53")
		b.kernel.Add(right, flow("10.96.0.11:53", "10.1.0.1:53"))
		b.settle()
		b.wantFlows(right)
	})
}

// TestCostOfManyEndpoints changes one of very many endpoints of a Service, and checks that no list
// of all of them is allocated.
func TestCostOfManyEndpoints(t *testing.T) {
	bytes := func(endpoints int) uint64 {
		old, cur := row("dns", "cluster=10.96.0.10:53"), row("dns", "cluster=10.96.0.10:53")
		for n := range endpoints {
			e := proxy.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), 53)}
			old.Cluster = append(old.Cluster, e)
		}
		cur.Cluster = slices.Clone(old.Cluster)
		cur.Cluster[endpoints/2].Addr = netip.MustParseAddrPort("10.2.0.1:53")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 10 {
			if !mayMakeStale(proxy.Upsert{Old: old, New: cur}) {
				t.Error("a removed endpoint does not make flows stale")
			}
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / 10
	}
	if few, many := bytes(1_250), bytes(5_000); many > 2*few {
		t.Errorf("%d bytes for one of 5,000 endpoints, %d for one of 1,250; want the same", many, few)
	}
}

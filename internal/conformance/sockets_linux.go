package conformance

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// Sockets is what a mode says of itself that acts on sockets, next to its rules. Each
// case is played with unbound sockets too then, if the kernel would choose the
// case's source.
type Sockets struct {
	// Open is Dataplane.Open for such a mode. The sockets of the node and its pods are
	// in the cgroup.
	Open func(ctx context.Context, cgroup string) (proxy.Dataplane, error)

	// Translated asks the kernel whether an open socket of TCP or UDP was translated.
	// It is called by several goroutines, in the client's namespace. Nil: nobody can be
	// asked, and only what becomes of packets is looked at.
	Translated func(d proxy.Dataplane, fd int) (bool, error)

	// Cgroups are those that the process is in already. Nil: it is in none.
	Cgroups *traffic.Cgroups
}

// translatedShare returns which share of the flows of unbound sockets is to be translated at
// the socket, as they are to endpoints where the outcome is the same. If it is none, to
// do so is wrong: a rule would have been missed or the endpoint would see another client.
func translatedShare(s *proxy.State, c *Case) (share float64) {
	p := packet(c)
	o := s.Outcome(p)
	if o.Verdict != proxy.Forward || p.Protocol == proxy.SCTP || o.Row.Affinity > 0 ||
		o.Row.Balancing != proxy.BalanceDefault && o.Row.Balancing != proxy.Random {
		return 0
	}
	if p.DstLocal && o.Frontend.Kind != proxy.NodePort || o.Route.From != nil {
		return 0
	}
	// A socket of the node takes the address of the way to the endpoint, as if it were
	// masqueraded. A pod must not see itself as its client.
	node := p.In == "" && o.Origin == proxy.ThisNode
	if !node && p.In != lab.Bridge {
		return 0
	}
	fit := 0
	for _, b := range o.Backends {
		again := *c // as the rules would see it then, which must have nothing to do with it
		again.Dst, again.DPort = b.Addr.Addr(), b.Addr.Port()
		if b.Masquerade == node && s.Outcome(packet(&again)).Verdict == proxy.Untouched {
			fit++
		}
	}
	return float64(fit) / float64(len(o.Backends))
}

// newScheduler moves the process to a cgroup of its own if the mode acts on sockets.
func newScheduler(t *testing.T, d Dataplane) *scheduler {
	s := &scheduler{d: d}
	if d.Sockets == nil {
		return s
	}
	var err error
	if s.cgroups = d.Sockets.Cgroups; s.cgroups == nil {
		if s.cgroups, err = traffic.NewCgroups(); err != nil {
			t.Fatalf("make a cgroup (v2) for sockets: %v", err)
		}
	}
	t.Cleanup(func() {
		n := &s.counters
		t.Logf("%d flows, %d of them unbound, %d translated at the socket", n.flows.Load(), n.unbound.Load(), n.translated.Load())
		if d.Sockets.Cgroups != nil {
			return
		}
		if err := s.cgroups.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// addCgroup returns the cgroup of one more testbed, if it is to have one.
func (s *scheduler) addCgroup() (string, error) {
	if s.cgroups == nil {
		return "", nil
	}
	return s.cgroups.Add()
}

// counters is what was played in all testbeds.
type counters struct{ flows, unbound, translated atomic.Int64 }

// choosesSource reports whether the client's kernel takes a case's source by itself.
func (b *testbed) choosesSource(c *Case) bool {
	if b.d.Sockets == nil || c.protocol() == proxy.SCTP {
		return false
	}
	src, err := b.clientHost(c).Source(c.Dst)
	return err == nil && src == c.Src
}

// addUnboundRuns has cases played with unbound sockets too, where that is the same case.
func (b *testbed) addUnboundRuns(runs []*caseRun) []*caseRun {
	for _, r := range runs {
		if b.choosesSource(r.Case) {
			r.unboundRun = &caseRun{Case: r.Case, want: r.want, sticky: r.sticky, unbound: true}
			if b.d.Sockets.Translated != nil {
				r.unboundRun.wantTranslated = r.wantTranslated
			}
			runs = append(runs, r.unboundRun)
		}
	}
	return runs
}

// socket returns how the next unbound socket of a case is made, each time otherwise.
func (r *caseRun) socket() traffic.Socket {
	n, tcp := r.sockets, r.protocol() == proxy.TCP
	r.sockets++
	return traffic.Socket{
		Unbound:     true,
		Mapped:      r.Dst.Is4() && n%3 == 1,
		Unconnected: !tcp && n%2 == 1,
		Multipath:   tcp && n%8 == 7 && r.want.Verdict == proxy.Forward, // whose refusals look like resets
	}
}

// inspect asks what became of an unbound socket of a case.
func (b *testbed) inspect(r *caseRun, fd int) {
	b.counters.unbound.Add(1)
	if b.d.Sockets.Translated == nil {
		return
	}
	translated, err := b.d.Sockets.Translated(b.dp, fd)
	r.err = cmp.Or(r.err, wrap("ask whether a socket was translated", err))
	if translated {
		r.translated++
		b.counters.translated.Add(1)
	}
}

// warmUp waits until a client's flows are translated: a mode may learn from the first
// one who it is; or until they are not, as an address of the node's just came. Where
// that was in vain once, it is not waited for again.
func (b *testbed) warmUp(ctx context.Context, runs []*caseRun) error {
	var cold []*caseRun
	for _, r := range runs {
		known := func(c *caseRun) bool { return c.Src == r.Src }
		if r.unbound && (r.wantTranslated > 0 || r.From == FromVIP) && !slices.ContainsFunc(cold, known) {
			cold = append(cold, &caseRun{Case: r.Case, want: r.want, unbound: true, wantTranslated: r.wantTranslated, unboundRun: r})
		}
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(traffic.Scaled(5 * time.Second))
	for len(cold) > 0 && !b.warmUpTimedOut {
		if err := b.connectAll(ctx, cold); err != nil {
			return err
		}
		cold = slices.DeleteFunc(cold, func(c *caseRun) bool {
			right := (c.translated > 0) == (c.wantTranslated > 0)
			c.translated, c.sockets, c.unboundRun.err = 0, 0, c.err // an ordinary socket again
			return right || c.err != nil
		})
		if len(cold) > 0 {
			b.warmUpTimedOut = (<-tick.C).After(end)
		}
	}
	return nil
}

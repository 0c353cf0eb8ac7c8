package conformance

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// Sockets describes a mode that acts on sockets in addition to its rules. Each case then also runs
// with unbound sockets, if the kernel would choose the case's source address.
type Sockets struct {
	// Open replaces Dataplane.Open. The sockets of the node and its pods are in the cgroup.
	Open func(ctx context.Context, cgroup string) (proxy.Dataplane, error)

	// Translated asks the kernel whether an open TCP or UDP socket was translated. It is called
	// concurrently, in the client's namespace. Nil means that this cannot be asked, so only the
	// results of packets are checked.
	Translated func(d proxy.Dataplane, fd int) (bool, error)

	// Cgroups is the cgroup that the process is already in. Nil means that each run creates one.
	Cgroups *traffic.Cgroups
}

// newScheduler moves the process into its own cgroup if the mode acts on sockets.
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

// addCgroup creates the cgroup of a testbed, if it needs one.
func (s *scheduler) addCgroup() (string, error) {
	if s.cgroups == nil {
		return "", nil
	}
	return s.cgroups.Add()
}

// counters counts flows over all testbeds.
type counters struct{ flows, unbound, translated atomic.Int64 }

// choosesSource reports whether the client's kernel would choose the source of the case by itself.
func (b *testbed) choosesSource(c *Case) bool {
	if b.d.Sockets == nil || c.protocol() == proxy.SCTP {
		return false
	}
	src, err := b.clientHost(c).Source(c.Dst)
	return err == nil && src == c.Src
}

// addUnboundRuns adds a run with unbound sockets for each case where the kernel chooses the same
// source.
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

// socket returns the options of the next unbound socket of a case; they vary from one to the next.
func (r *caseRun) socket() traffic.Socket {
	n, tcp := r.sockets, r.protocol() == proxy.TCP
	r.sockets++
	return traffic.Socket{
		Unbound:     true,
		Mapped:      r.Dst.Is4() && n%3 == 1,
		Unconnected: !tcp && n%2 == 1,
		Multipath:   tcp && n%8 == 7 && r.want.Verdict == proxy.Forward, // MPTCP reports refusals as resets
	}
}

// inspect records whether an unbound socket of a case was translated.
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

// warmUp waits until a client's flows are translated, because a mode may learn the client's address
// from its first flow; or, after an address was bound to the node, until they are no longer
// translated. After a timeout it never waits again.
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
			c.translated, c.sockets, c.unboundRun.err = 0, 0, c.err // reset for the next round
			return right || c.err != nil
		})
		if len(cold) > 0 {
			b.warmUpTimedOut = (<-tick.C).After(end)
		}
	}
	return nil
}

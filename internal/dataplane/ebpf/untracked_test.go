package ebpf_test

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance"
	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

var allPods = netip.MustParsePrefix("10.0.0.0/8")

// outside returns a host whose new sockets are in no cgroup of the programs, so that the
// rules translate.
func outside(h *lab.Host) *lab.Host {
	n := *h.Namespace
	n.Cgroup = ""
	out := *h
	out.Namespace = &n
	return &out
}

// untracks reports whether connections between pods are not tracked.
func (h *host) untracks() bool {
	return proxytest.Values(h.Context(), h.d, "ebpf_untracked")[""] == 1
}

// tracked returns the flows of the node whose replies come from pods.
func (h *host) tracked() (out []string) {
	h.Helper()
	err := h.lab.Node().Do(func() error {
		c, err := ct.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			flows, failed := c.Dump(h.Context(), ct.Filter{Protocol: protocol}, func(f *ct.Flow) bool { return allPods.Contains(f.Reply.Src.Addr()) })
			for _, f := range flows {
				out = append(out, f.String())
			}
			err = errors.Join(err, failed)
		}
		return err
	})
	if err != nil {
		h.Fatal(err)
	}
	return out
}

// wantReplies makes connections of both protocols from a host to the Services, and checks
// that each gets a reply.
func (h *host) wantReplies(from *lab.Host) {
	h.Helper()
	for range 10 {
		s := h.socket(from, proxy.TCP, web)
		_, _ = s.receive()
		s.close()
		s = h.socket(from, proxy.UDP, dns)
		if _, as := s.ask(netip.AddrPort{}); as != dns {
			h.Errorf("answered as %v; want %v", as, dns)
		}
		s.close()
	}
}

// TestUntracked checks that connections that are translated at sockets are not tracked, that
// those that the rules translate are, and that both work.
func TestUntracked(t *testing.T) {
	h := newHost(t)
	h.EBPF.Untracked = []netip.Prefix{allPods}
	h.start(nil)
	rows := []*proxy.ServicePort{row("web", proxy.TCP, web, pods...), row("dns", proxy.UDP, dns, pods...)}
	h.serve(rows...)
	if h.untracks() {
		t.Fatal("untracking is active though older flows may exist")
	}
	h.eventually("untracking is active when older flows are gone", func() bool {
		err := errors.Join(h.lab.Node().FlushConntrack(), h.sync(rows...))
		return err == nil && h.untracks()
	})
	h.warm(proxy.TCP, web)
	h.warm(proxy.UDP, dns)
	h.must(h.lab.Node().FlushConntrack())
	h.wantReplies(h.client)
	if flows := h.tracked(); len(flows) > 0 {
		t.Errorf("%d flows between pods are tracked, the first: %s", len(flows), flows[0])
	}
	h.wantReplies(outside(h.client))
	if flows := h.tracked(); len(flows) != 20 {
		t.Errorf("%d flows that the rules translate are tracked; want 20:\n%s", len(flows), strings.Join(flows, "\n"))
	}
	// The next daemon keeps it, and writes nothing.
	h.stop()
	h.start(nil)
	h.must(h.sync(rows...))
	if n := h.d.Rewritten().Objects; !h.untracks() || n != 0 {
		t.Errorf("after a restart untracked is %v, and %d objects were written; want true and none", h.untracks(), n)
	}
	// Without the option, everything is tracked again.
	h.stop()
	h.EBPF.Untracked = nil
	h.start(nil)
	h.serve(rows...)
	h.wantReplies(h.client)
	if flows := h.tracked(); len(flows) < 40 {
		t.Errorf("%d flows between pods are tracked without the option; want 20 more than before", len(flows))
	}
}

// TestUntrackedKeepsOlderFlows checks that flows that were translated earlier, with any source
// port, keep working.
func TestUntrackedKeepsOlderFlows(t *testing.T) {
	h := newHost(t)
	h.start(nil)
	rows := []*proxy.ServicePort{row("dns", proxy.UDP, dns, pods...)}
	h.serve(rows...)
	open := h.socket(outside(h.client), proxy.UDP, dns)
	by, _ := open.ask(netip.AddrPort{})
	h.stop()
	h.EBPF.Untracked = []netip.Prefix{allPods}
	h.start(nil)
	for range 3 {
		h.must(h.sync(rows...))
		if again, as := open.ask(netip.AddrPort{}); h.untracks() || again != by || as != dns {
			t.Fatalf("untracked is %v; %v answered as %v; want %v as %v", h.untracks(), again, as, by, dns)
		}
	}
	if err := errors.Join(h.lab.Node().FlushConntrack(), h.sync(rows...)); err != nil || !h.untracks() {
		t.Errorf("without older flows untracked is %v, error %v; want true", h.untracks(), err)
	}
	// Another process removes the rule that chooses ports, and a flow is translated without
	// it. The repair keeps the flow.
	err := h.lab.Node().Do(func() error { return exec.Command("nft", "flush", "chain", "ip", "sluice", "nat-postrouting").Run() })
	if err != nil {
		t.Fatal(err)
	}
	broken := h.socket(outside(h.client), proxy.UDP, dns)
	if _, err := unix.Write(broken.fd, []byte("?")); err != nil {
		t.Fatal(err)
	}
	h.eventually("the flow is translated", func() bool { return len(h.tracked()) > 0 })
	h.must(h.sync(rows...))
	if _, as := broken.ask(netip.AddrPort{}); h.untracks() || as != dns {
		t.Errorf("untracked is %v; answered as %v; want %v", h.untracks(), as, dns)
	}
}

// TestUntrackedServices checks that everything is tracked if addresses of Services are within
// the ranges of pods.
func TestUntrackedServices(t *testing.T) {
	for _, ranges := range []string{"172.0.0.0/8", "172.30.0.1/32", "0.0.0.0/1,128.0.0.0/1"} {
		t.Run(ranges, func(t *testing.T) {
			h := newHost(t)
			for _, r := range strings.Split(ranges, ",") {
				h.EBPF.Untracked = append(h.EBPF.Untracked, netip.MustParsePrefix(r))
			}
			h.start(nil)
			for range 2 {
				h.serve(row("web", proxy.TCP, web, pods...), row("dns", proxy.UDP, dns, pods...))
			}
			if h.wantReplies(outside(h.client)); h.untracks() {
				t.Errorf("untracking is active though %v is within the ranges", web)
			}
		})
	}
}

// TestUntrackedFollowsAddresses checks that the node's own addresses within the ranges are
// excluded when they change: other programs masquerade to them.
func TestUntrackedFollowsAddresses(t *testing.T) {
	h := newHost(t)
	h.EBPF.Untracked = []netip.Prefix{allPods}
	h.start(nil)
	rows := []*proxy.ServicePort{row("web", proxy.TCP, web, pods...)}
	h.serve(rows...)
	h.eventually("untracking is active", func() bool {
		err := errors.Join(h.lab.Node().FlushConntrack(), h.sync(rows...))
		return err == nil && h.untracks()
	})
	own := netip.MustParseAddr("10.9.9.9")
	h.must(h.lab.Node().Bind(own))
	changed := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		_ = h.d.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}, func(string) {})
	}()
	h.eventually("the address is in the rules", func() bool {
		<-changed
		h.must(h.sync(rows...))
		return slices.Contains(h.d.Excepted(), own)
	})
	exact, err := h.d.Untracks(ctx)
	if n := h.d.Rewritten().Objects; n != 0 || !h.untracks() || !exact || err != nil {
		t.Errorf("untracked is %v, the rules exclude the address: %t, %v; and %d objects count as repaired; want none", h.untracks(), exact, err, n)
	}
}

// untrackingDataplane is a dataplane whose Sync makes untracking active where that is
// possible, and counts how often.
type untrackingDataplane struct {
	*ebpf.Dataplane
	times *atomic.Int32
}

func (d *untrackingDataplane) Sync(ctx context.Context, want *proxy.State) (refused proxy.Refused, err error) {
	for range 2 {
		if refused, err = d.Dataplane.Sync(ctx, want); err != nil {
			return refused, err
		}
	}
	if proxytest.Values(ctx, d.Dataplane, "ebpf_untracked")[""] == 1 {
		d.times.Add(1)
	}
	return refused, nil
}

// Apply falls back to Sync, as the engine does.
func (d *untrackingDataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	refused, err := d.Dataplane.Apply(ctx, want, changed)
	if errors.Is(err, proxy.ErrNeedSync) {
		return d.Sync(ctx, want)
	}
	return refused, err
}

// untrackedUnderTest returns a dataplane for the packet table that does not track connections
// between pods.
func untrackedUnderTest(t *testing.T) conformance.Dataplane {
	var times atomic.Int32
	options := mode.EBPF{Untracked: []netip.Prefix{allPods, netip.MustParsePrefix("fd00:10::/64")}}
	d := underTestAs(t, options, func(d *ebpf.Dataplane) proxy.Dataplane { return &untrackingDataplane{d, &times} })
	t.Cleanup(func() {
		if times.Load() == 0 {
			t.Error("untracking was never active")
		}
		t.Logf("untracking was active after %d syncs", times.Load())
	})
	return d
}

// TestConformanceUntracked and TestRandomUntracked are TestConformance and TestRandom without
// tracking of connections between pods.
func TestConformanceUntracked(t *testing.T) { conformance.Run(t, untrackedUnderTest(t)) }

func TestRandomUntracked(t *testing.T) { conformance.RunRandom(t, untrackedUnderTest(t), 1, 15) }

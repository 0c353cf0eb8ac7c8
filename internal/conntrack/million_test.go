package conntrack

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/reliability"
	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

// manyFlows is how many flows TestLabManyFlows has. A kernel tracks as many as
// net.netfilter.nf_conntrack_max says, which a network namespace cannot change.
var manyFlows = flag.Int("flows", 20_000, "how many flows TestLabManyFlows has")

// inNamespace opens connection tracking of a network namespace that ends with the
// test, and has it track n flows to endpoints in turn.
func inNamespace(t *testing.T, n int, to []proxy.Endpoint) *ct.Conn {
	t.Helper()
	runtime.LockOSThread() // for good, so that the namespace ends with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v (kernel tests need root)", err)
	}
	peer, err := conntrack.Dial(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	dst := netip.MustParseAddr("10.96.0.10")
	for i := range n {
		src := netip.AddrFrom4([4]byte{172, byte(16 + i>>24), byte(i >> 16), byte(i >> 8)})
		f := conntrack.NewFlow(unix.IPPROTO_UDP, conntrack.StatusConfirmed, src, dst, uint16(1024+i&255), 53, 3600, 0)
		by := to[i%len(to)].Addr
		f.TupleReply.IP.SourceAddress, f.TupleReply.Proto.SourcePort = by.Addr(), by.Port()
		if err := peer.Create(f); err != nil {
			t.Fatalf("create flow %d: %v", i, err)
		}
	}
	c, err := ct.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// counting counts what is asked of connection tracking.
type counting struct {
	ct.Interface
	dumps, most int
}

func (c *counting) Dump(ctx context.Context, f ct.Filter, keep func(*ct.Flow) bool) ([]ct.Flow, error) {
	flows, err := c.Interface.Dump(ctx, f, keep)
	c.dumps++
	c.most = max(c.most, len(flows))
	return flows, err
}

// TestLabManyFlows takes one of 5,000 endpoints from a Service, one hundred more in
// as many steps, and then the Service, while the kernel tracks very many flows to it.
func TestLabManyFlows(t *testing.T) {
	const endpoints = 5_000
	dns := row("dns", "cluster=10.96.0.10:53")
	for i := range endpoints {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		dns.Cluster = append(dns.Cluster, proxy.Endpoint{Addr: netip.AddrPortFrom(a, 53)})
	}
	began := time.Now()
	kernel := &counting{Interface: inNamespace(t, *manyFlows, dns.Cluster)}
	t.Logf("%d flows were made in %v", *manyFlows, time.Since(began))
	r := New(Settings{Flows: kernel, LocalAddrs: func() ([]netip.Addr, error) { return nil, nil }})
	step := func(old, cur *proxy.ServicePort) {
		d := &proxy.Delta{Upserts: []proxy.Upsert{{Old: old, New: cur}}}
		if cur == nil {
			d = &proxy.Delta{Removes: []*proxy.ServicePort{old}}
		}
		r.Applying(d)
		r.Applied(&proxy.Node{}, d, false)
	}
	pass := func(what string, left, dumps int) {
		t.Helper()
		kernel.dumps, kernel.most = 0, 0
		began := time.Now()
		r.pass(t.Context())
		took := time.Since(began)
		made, most := kernel.dumps, kernel.most
		all, err := kernel.Interface.Dump(t.Context(), ct.Filter{Protocol: unix.IPPROTO_UDP}, func(*ct.Flow) bool { return true })
		if err != nil || len(all) != left {
			t.Errorf("%s: %d flows are left, error %v; want %d", what, len(all), err, left)
		}
		if made != dumps || most > endedAtOnce {
			t.Errorf("%s: %d dumps, of up to %d flows; want %d, of %d", what, made, most, dumps, endedAtOnce)
		}
		reliability.Record(t, reliability.Result{
			Fault: what + " while many flows are tracked", Mode: "any", Tried: 1,
			Note: fmt.Sprintf("%d flows: %d dumps, %d ended in %v", *manyFlows, made, *manyFlows-left, took.Round(time.Millisecond)),
		})
	}
	step(nil, dns)
	pass("a UDP Service comes", *manyFlows, 1)
	less := func(n int) *proxy.ServicePort {
		sp := *dns
		sp.Cluster = dns.Cluster[:endpoints-n]
		return &sp
	}
	each := *manyFlows / endpoints
	step(dns, less(1))
	pass("one of 5,000 UDP endpoints goes", *manyFlows-each, 1)
	for n := range 100 {
		step(less(1+n), less(2+n))
	}
	pass("100 UDP endpoints go, one by one", *manyFlows-101*each, 1)
	step(less(101), nil)
	pass("a UDP Service goes", 0, 1+(*manyFlows-101*each)/endedAtOnce)
}

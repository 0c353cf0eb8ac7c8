package conntrack

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/reliability"
	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/netlink"
	"sluice/internal/proxy"
)

// inNamespace opens the connection tracking of a network namespace that ends with the test, and
// creates n flows in it, to the endpoints in turn.
func inNamespace(t *testing.T, n int, to []proxy.Endpoint) *ct.Conn {
	t.Helper()
	lab.RequireRoot(t)
	var c *ct.Conn
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, and the namespace with its sockets
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = makeFlows(n, to)
		}
		if err == nil {
			c, err = ct.Open()
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatalf("make %d flows in a network namespace: %v", n, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// makeFlows creates n flows in the kernel, many with each system call.
func makeFlows(n int, to []proxy.Endpoint) (err error) {
	peer, err := netlink.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	const batch = 200
	for first := 0; first < n; first += batch {
		peer.Reset()
		for i := first; i < min(first+batch, n); i++ {
			addFlow(peer, i, to[i%len(to)].Addr)
		}
		if err := peer.Send(); err != nil {
			return err
		}
		if refused, err := peer.Answers(); err != nil || len(refused) > 0 {
			return fmt.Errorf("from %d on: %w, refused: %v", first, err, refused)
		}
	}
	return nil
}

// addFlow adds a message that creates a flow to an endpoint.
func addFlow(c *netlink.Conn, i int, by netip.AddrPort) {
	client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, byte(16 + i>>24), byte(i >> 16), byte(i >> 8)}), uint16(1024+i&255))
	tuple := func(kind uint16, src, dst netip.AddrPort) {
		c.Nest(kind, func() {
			c.Nest(nl.CTA_TUPLE_IP, func() {
				c.Raw(nl.CTA_IP_V4_SRC, string(src.Addr().AsSlice()))
				c.Raw(nl.CTA_IP_V4_DST, string(dst.Addr().AsSlice()))
			})
			c.Nest(nl.CTA_TUPLE_PROTO, func() {
				c.Raw(nl.CTA_PROTO_NUM, string([]byte{unix.IPPROTO_UDP}))
				c.U16(nl.CTA_PROTO_SRC_PORT, src.Port())
				c.U16(nl.CTA_PROTO_DST_PORT, dst.Port())
			})
		})
	}
	c.Begin(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL, netlink.Netfilter(netlink.IPv4, 0))
	tuple(nl.CTA_TUPLE_ORIG, client, netip.MustParseAddrPort("10.96.0.10:53"))
	tuple(nl.CTA_TUPLE_REPLY, by, client)
	c.U32(nl.CTA_TIMEOUT, 3600)
}

// counting counts the dumps and their flows.
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

// maxGrowth bounds the growth of the heap in a pass, with its garbage, however many flows there
// are. The flows held to be ended (maxHeldFlows) take a third of it, and their slice grows by
// copying.
const maxGrowth = 128 << 20

// heapGrowth returns the maximum growth of the heap while do runs, with the daemon's garbage
// collection setting.
func heapGrowth(do func()) int {
	defer debug.SetGCPercent(debug.SetGCPercent(60))
	runtime.GC()
	heap := func() int {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before, most := heap(), 0
	done, sampled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sampled)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, heap())
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	do()
	close(done)
	<-sampled
	return most - before
}

// threadTime returns the CPU time of the calling thread.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// count counts the UDP flows that the kernel tracks.
func count(kernel ct.Interface) (n int, err error) {
	_, err = kernel.Dump(context.Background(), ct.Filter{Protocol: unix.IPPROTO_UDP}, func(*ct.Flow) bool {
		n++
		return false
	})
	return n, err
}

// TestLabManyFlows removes one of 5,000 endpoints of a Service, then a hundred more one by one, and
// then the Service, while the kernel tracks very many flows to it.
func TestLabManyFlows(t *testing.T) { endFlows(t, 20_000, 20_000) }

// million enables TestLabMillionFlows, whose flows take seconds to create.
var million = flag.Bool("million", false, "play TestLabMillionFlows, which has the kernel track a million flows")

// TestLabMillionFlows does the same with a million flows. A network namespace cannot have more than
// the machine itself allows; the rest is created in other namespaces, because the kernel has one
// table for all of them and walks all of it for each dump.
func TestLabMillionFlows(t *testing.T) {
	if !*million {
		t.Skip("with -million, which make reliability has")
	}
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	const all = 1_000_000
	own := min(all, most/5_000*5_000)
	for rest := all - own; rest > 0; rest -= own {
		inNamespace(t, min(rest, own), []proxy.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:53")}})
	}
	endFlows(t, own, all)
}

// endFlows ends flows, of all that the kernel tracks.
func endFlows(t *testing.T, flows, all int) {
	runtime.LockOSThread() // whose time is measured
	defer runtime.UnlockOSThread()
	const endpoints = 5_000
	dns := row("dns", "cluster=10.96.0.10:53")
	for i := range endpoints {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		dns.Cluster = append(dns.Cluster, proxy.Endpoint{Addr: netip.AddrPortFrom(a, 53)})
	}
	began := time.Now()
	kernel := &counting{Interface: inNamespace(t, flows, dns.Cluster)}
	t.Logf("%d flows were made in %v", flows, time.Since(began))
	r := New(Settings{Flows: kernel, LocalAddrs: func() ([]netip.Prefix, error) { return nil, nil }})
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
		began, spent := time.Now(), threadTime(t)
		grew := heapGrowth(func() { r.pass(t.Context()) })
		took, cpu := time.Since(began), threadTime(t)-spent
		made, most := kernel.dumps, kernel.most
		n, err := count(kernel.Interface)
		if err != nil || n != left {
			t.Errorf("%s: %d flows are left, error %v; want %d", what, n, err, left)
		}
		if made != dumps || most > maxHeldFlows {
			t.Errorf("%s: %d dumps, of up to %d flows; want %d, of %d", what, made, most, dumps, maxHeldFlows)
		}
		if grew > maxGrowth {
			t.Errorf("%s: the heap grew by %d bytes, want %d at most", what, grew, maxGrowth)
		}
		reliability.Record(t, reliability.Result{
			Fault: fmt.Sprintf("%s while %d flows are tracked", what, all), Mode: "any", Tried: 1, Repairs: []time.Duration{took},
			Note: fmt.Sprintf("%d of the flows are in its namespace; %d dumps, %d left after %v, of which the processor took %v; the heap grew by %d MiB",
				flows, made, left, took.Round(time.Millisecond), cpu.Round(time.Millisecond), grew>>20),
		})
	}
	step(nil, dns)
	pass("a UDP Service comes", flows, 1)
	less := func(n int) *proxy.ServicePort {
		sp := *dns
		sp.Cluster = dns.Cluster[:endpoints-n]
		return &sp
	}
	each := flows / endpoints
	step(dns, less(1))
	pass("one of 5,000 UDP endpoints goes", flows-each, 1)
	for n := range 100 {
		step(less(1+n), less(2+n))
	}
	pass("100 UDP endpoints go, one by one", flows-101*each, 1)
	step(less(101), nil)
	pass("a UDP Service goes", 0, 1+(flows-101*each)/maxHeldFlows)
}

package traffic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/internal/kernel/ct"
	"sluice/internal/kernel/ct/cttest"
	"sluice/internal/proxy"
)

var nodeIP = netip.MustParseAddr("192.0.2.1")

// bench is a Collector over connection tracking in memory, in fake time.
type bench struct {
	*Collector
	t      *testing.T
	kernel *cttest.Fake
}

func newBench(t *testing.T, edit ...func(*Settings)) *bench {
	k := cttest.NewFake()
	s := Settings{
		Flows: k, Ends: k, Bytes: true, MaxSeries: DefaultMaxSeries,
		LocalAddrs: func() ([]netip.Prefix, error) {
			return []netip.Prefix{netip.PrefixFrom(nodeIP, 32), netip.MustParsePrefix("198.51.100.128/25")}, nil
		},
	}
	for _, e := range edit {
		e(&s)
	}
	return &bench{New(s), t, k}
}

// has puts rows in force, on a node all of whose IPv4 addresses accept NodePorts.
func (b *bench) has(rows ...*proxy.ServicePort) {
	d := &proxy.Delta{}
	for _, sp := range rows {
		d.Upserts = append(d.Upserts, proxy.Upsert{New: sp})
	}
	b.Applied(&proxy.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}, d)
}

func (b *bench) loses(rows ...*proxy.ServicePort) {
	b.Applied(b.index.node, &proxy.Delta{Removes: rows})
}

// now counts even if that was done a moment ago.
func (b *bench) now() {
	b.t.Helper()
	b.nextRead = time.Time{}
	b.Refresh(b.t.Context())
}

// of returns the counts of one row.
func (c *Collector) of(key proxy.PortKey) (Counts, map[netip.AddrPort]Counts, bool) {
	all := c.RowsOf([]proxy.PortKey{key})
	if len(all) == 0 {
		return Counts{}, nil, false
	}
	return all[0].Counts, all[0].Endpoints, true
}

// want counts and compares with texts like "connections_total{ns,web,80} 3" for
// all series of some metrics, by the end of their names.
func (b *bench) want(metrics string, want ...string) {
	b.t.Helper()
	b.now()
	var got []string
	for _, m := range b.Metrics(b.t.Context()) {
		if !slices.ContainsFunc(strings.Fields(metrics), func(s string) bool { return m.Name == s }) {
			continue
		}
		m.Read(func(value float64, labels ...string) {
			if len(labels) != len(m.Labels) {
				b.t.Errorf("%s has labels %v, and values %v", m.Name, m.Labels, labels)
			}
			got = append(got, fmt.Sprintf("%s{%s} %v", m.Name, strings.Join(labels, ","), value))
		})
	}
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	if diff := cmp.Diff(want, got); diff != "" {
		b.t.Errorf("series mismatch (-want +got):\n%s", diff)
	}
}

func servicePort(name, vip string, endpoints ...string) *proxy.ServicePort {
	at := netip.MustParseAddrPort(vip)
	sp := &proxy.ServicePort{
		Key: proxy.PortKey{
			ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: name, Protocol: proxy.TCP}, Family: proxy.FamilyOf(at.Addr()),
		},
		Frontends: []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: at}},
	}
	for _, e := range endpoints {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: netip.MustParseAddrPort(e)})
	}
	return sp
}

// flow returns a connection of the nth client.
func flow(n int, dst, endpoint string, bytes uint64) ct.Flow {
	src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, byte(n >> 8), byte(n)}), 4000)
	f := ct.Flow{
		Protocol: 6, Orig: ct.Tuple{Src: src, Dst: netip.MustParseAddrPort(dst)},
		Reply: ct.Tuple{Src: netip.MustParseAddrPort(endpoint), Dst: src}, Translated: true,
	}
	f.Carried = carried(bytes)
	return f
}

func carried(bytes uint64) ct.Carried {
	return ct.Carried{Known: true, Orig: ct.Count{Packets: 1, Bytes: bytes}, Reply: ct.Count{Packets: 2, Bytes: 10 * bytes}}
}

func (b *bench) ends(f ct.Flow) {
	b.t.Helper()
	all := b.kernel.Flows()
	i := slices.IndexFunc(all, func(have ct.Flow) bool { return have.Orig == f.Orig })
	if err := b.kernel.Delete(b.t.Context(), &all[i]); err != nil {
		b.t.Fatal(err)
	}
}

const (
	vip = "10.96.0.1:80"
	one = "10.1.0.1:8080"
	two = "10.1.0.2:8080"
)

// TestFlows counts live flows, ended flows, and none that do not belong to a Service.
func TestFlows(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.Endpoints = true })
	web := servicePort("web", vip, one, two)
	web.Frontends = append(web.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:30080")})
	b.has(web)
	b.want("service_connections_total")
	otherZone := flow(9, vip, one, 1)
	otherZone.Zone = 7
	b.kernel.Add(
		flow(1, vip, one, 100), flow(2, vip, two, 200), flow(3, nodeIP.String()+":30080", one, 1000),
		flow(4, "198.51.100.1:30080", one, 1), flow(5, "10.96.0.2:80", one, 1), otherZone,
	)
	all := "service_connections_total service_active_connections service_bytes_total service_packets_total endpoint_connections_total endpoint_bytes_total"
	want := []string{
		"service_connections_total{ns,web,80} 3",
		"service_bytes_total{ns,web,80,in} 1300", "service_bytes_total{ns,web,80,out} 13000",
		"service_packets_total{ns,web,80,in} 3", "service_packets_total{ns,web,80,out} 6",
		"endpoint_connections_total{ns,web,80,10.1.0.1:8080} 2", "endpoint_connections_total{ns,web,80,10.1.0.2:8080} 1",
		"endpoint_bytes_total{ns,web,80,10.1.0.1:8080,in} 1100", "endpoint_bytes_total{ns,web,80,10.1.0.1:8080,out} 11000",
		"endpoint_bytes_total{ns,web,80,10.1.0.2:8080,in} 200", "endpoint_bytes_total{ns,web,80,10.1.0.2:8080,out} 2000",
	}
	b.want(all, append(want, "service_active_connections{ns,web,80} 3")...)
	closed := flow(1, vip, one, 100)
	closed.Closed = true
	b.kernel.Carry(closed)
	b.ends(flow(2, vip, two, 200))
	b.want(all, append(want, "service_active_connections{ns,web,80} 1")...)
}

// TestFailures counts TCP connections that ended without an answer, and neither those
// that are still open, nor datagrams.
func TestFailures(t *testing.T) {
	for known, want := range map[bool][]string{
		true: {
			"service_failed_connections_total{ns,web,80} 1",
			"endpoint_failed_connections_total{ns,web,80,10.1.0.1:8080} 1", "endpoint_failed_connections_total{ns,web,80,10.1.0.2:8080} 0",
		},
		false: nil, // some connections are not seen
	} {
		b := newBench(t, func(s *Settings) { s.Endpoints, s.Failures = true, known })
		web, dns := servicePort("web", vip, one, two), servicePort("web", vip, one, two)
		dns.Key.Protocol = proxy.UDP
		b.has(web, dns)
		failed, answered, open, datagram := flow(1, vip, one, 1), flow(2, vip, two, 1), flow(3, vip, one, 1), flow(4, vip, one, 1)
		answered.Answered, datagram.Protocol = true, uint8(proxy.UDP)
		b.kernel.Add(failed, answered, open, datagram)
		b.now()
		for _, f := range []ct.Flow{failed, answered, datagram} {
			b.ends(f)
		}
		b.now()
		got, endpoints, _ := b.of(web.Key)
		if got.Failed != 1 || got.Connections != 3 || endpoints[netip.MustParseAddrPort(one)].Failed != 1 || got.Failing != known {
			t.Errorf("%+v, endpoints %+v", got, endpoints)
		}
		b.loses(dns)
		b.want("service_failed_connections_total endpoint_failed_connections_total", want...)
	}
}

// TestFlowsToLocalRoute counts flows to a NodePort at an address that the node has only through a
// local route.
func TestFlowsToLocalRoute(t *testing.T) {
	b := newBench(t)
	web := servicePort("web", vip, one)
	web.Frontends = append(web.Frontends, proxy.Frontend{Kind: proxy.NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:30080")})
	b.has(web)
	b.now()
	b.kernel.Add(flow(1, "198.51.100.200:30080", one, 1))
	b.want("service_connections_total", "service_connections_total{ns,web,80} 1")
}

// TestFlowsBeforeUs leaves out what flows carried before the first read, and keeps what they
// carried later even if they end without an event.
func TestFlowsBeforeUs(t *testing.T) {
	b := newBench(t)
	old := flow(1, vip, one, 1e9)
	b.kernel.Add(old)
	b.has(servicePort("web", vip, one))
	bytes := "service_bytes_total"
	b.want(bytes, "service_bytes_total{ns,web,80,in} 0", "service_bytes_total{ns,web,80,out} 0")
	old.Carried = carried(1e9 + 5)
	b.kernel.Carry(old)
	b.want(bytes, "service_bytes_total{ns,web,80,in} 5", "service_bytes_total{ns,web,80,out} 50")
	b.kernel.Lose([]ct.Flow{old}, false)
	b.want(bytes, "service_bytes_total{ns,web,80,in} 5", "service_bytes_total{ns,web,80,out} 50")
	b.kernel.Add(flow(2, vip, one, 3))
	b.want(bytes+" service_connections_total service_active_connections",
		"service_bytes_total{ns,web,80,in} 8", "service_bytes_total{ns,web,80,out} 80",
		"service_connections_total{ns,web,80} 2", "service_active_connections{ns,web,80} 1")
}

// racing ends flows while a dump is in progress: some are in it, some are not.
type racing struct {
	*cttest.Fake
	during func(inDump bool)
}

func (r *racing) Each(ctx context.Context, begin func(), each func(*ct.Flow)) error {
	r.during(false)
	err := r.Fake.Each(ctx, begin, each)
	r.during(true)
	return err
}

// TestEndsDuringADump counts every flow once, whether or not the dump contains it.
func TestEndsDuringADump(t *testing.T) {
	b := newBench(t)
	b.has(servicePort("web", vip, one))
	b.now()
	next := 0
	b.settings.Flows = &racing{b.kernel, func(bool) {
		b.ends(flow(next, vip, one, 1000))
		next++
	}}
	var last uint64
	for n := range 100 {
		b.kernel.Add(flow(2*n, vip, one, 1000), flow(2*n+1, vip, one, 1000))
		b.now()
		counts, _, _ := b.of(servicePort("web", vip).Key)
		if counts.Connections < last || counts.Connections > uint64(2*n+2) || counts.Bytes[proxy.In] != 1000*counts.Connections {
			t.Fatalf("after %d connections: %+v, before %d", 2*n+2, counts, last)
		}
		last = counts.Connections
	}
	b.settings.Flows = b.kernel
	b.want("service_connections_total service_active_connections", "service_connections_total{ns,web,80} 200", "service_active_connections{ns,web,80} 0")
}

// TestEndOfTheLastDuringADump checks that flows that end during the dump are not taken for flows
// that ended without an event.
func TestEndOfTheLastDuringADump(t *testing.T) {
	b := newBench(t)
	b.has(servicePort("web", vip, one))
	b.now()
	const flows = 20
	for n := range flows {
		b.kernel.Add(flow(n, vip, one, 1000))
	}
	b.now()
	next := 0
	b.settings.Flows = &racing{b.kernel, func(bool) {
		b.ends(flow(next, vip, one, 1000))
		next++
	}}
	for next < flows {
		b.now()
		if n, _, _ := b.of(servicePort("web", vip).Key); n.Connections != flows || n.Bytes[proxy.In] != flows*1000 {
			t.Fatalf("after %d have ended: %+v", next, n)
		}
	}
	b.settings.Flows = b.kernel
	b.want("service_connections_total", fmt.Sprintf("service_connections_total{ns,web,80} %d", flows))
}

// TestLostEvents counts lost events, and continues from the known counts.
func TestLostEvents(t *testing.T) {
	b := newBench(t)
	b.has(servicePort("web", vip, one))
	b.now()
	known, unknown := flow(1, vip, one, 100), flow(2, vip, one, 100)
	b.kernel.Add(known)
	b.now()
	b.kernel.Add(unknown)
	b.kernel.Lose([]ct.Flow{known, unknown}, true)
	names := "service_connections_total service_traffic_lost_events_total"
	b.want(names, "service_connections_total{ns,web,80} 1", "service_traffic_lost_events_total{} 1")
	b.kernel.Add(flow(3, vip, one, 100))
	b.want(names, "service_connections_total{ns,web,80} 2", "service_traffic_lost_events_total{} 1")
}

// TestConnectionsOnly reports no bytes.
func TestConnectionsOnly(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.Bytes = false })
	b.has(servicePort("web", vip, one))
	b.kernel.Add(flow(1, vip, one, 100))
	b.want("service_connections_total service_bytes_total service_packets_total", "service_connections_total{ns,web,80} 1")
	if n, _, ok := b.of(servicePort("web", vip).Key); !ok || n.Carried || n.Connections != 1 {
		t.Errorf("counts %+v, %t", n, ok)
	}
}

// TestChurn adds and removes Services and endpoints with traffic, and checks that nothing of them
// is left.
func TestChurn(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.MaxSeries, s.Endpoints = 10, true })
	b.has()
	b.now()
	for n := range 300 {
		at := fmt.Sprintf("10.97.%d.%d:80", n/100, n%100)
		sp := servicePort(fmt.Sprint("web-", n), at, one, two)
		b.has(sp)
		b.kernel.Add(flow(n, at, one, 1), flow(1000+n, at, two, 1))
		b.now()
		b.ends(flow(n, at, one, 1))
		fewer := *sp
		fewer.Cluster = sp.Cluster[1:]
		b.Applied(b.index.node, &proxy.Delta{Upserts: []proxy.Upsert{{Old: sp, New: &fewer}}})
		if _, endpoints, _ := b.of(sp.Key); len(endpoints) != 1 {
			t.Fatalf("an endpoint that left has counts: %v", endpoints)
		}
		b.loses(&fewer)
		b.ends(flow(1000+n, at, two, 1))
	}
	for _, m := range b.Metrics(t.Context()) {
		b.now()
		m.Read(func(value float64, labels ...string) {
			if len(labels) > 0 || value != 0 {
				t.Errorf("%s%v is %v", m.Name, labels, value)
			}
		})
	}
	if len(b.rows)+len(b.list)+len(b.services)+len(b.index.rows)+len(b.ownSeries) > 0 {
		t.Errorf("%d rows, %d services, %d frontends, %d series stay", len(b.rows)+len(b.list), len(b.services), len(b.index.rows), len(b.ownSeries))
	}
}

// TestFold has more Services with traffic than may have series. The shared series does not decrease
// when one of them is removed.
func TestFold(t *testing.T) {
	b := newBench(t, func(s *Settings) { s.MaxSeries = 2 })
	var all []*proxy.ServicePort
	b.has(servicePort("idle", "10.96.1.9:80", one))
	b.now()
	for n := range 4 {
		at := fmt.Sprintf("10.96.1.%d:80", n)
		all = append(all, servicePort(fmt.Sprint("web-", n), at, one))
		b.has(all[n])
		b.kernel.Add(flow(n, at, one, 1))
		b.now()
	}
	metrics := "service_connections_total service_folded service_endpoints"
	endpoints := []string{
		"service_endpoints{ns,web-0,80,draining} 0", "service_endpoints{ns,web-0,80,local} 0", "service_endpoints{ns,web-0,80,remote} 1",
		"service_endpoints{ns,web-1,80,draining} 0", "service_endpoints{ns,web-1,80,local} 0", "service_endpoints{ns,web-1,80,remote} 1",
	}
	own := append(endpoints, "service_connections_total{ns,web-0,80} 1", "service_connections_total{ns,web-1,80} 1")
	b.want(metrics, append(own, "service_connections_total{_folded,_folded,_folded} 2", "service_folded{} 2")...)
	b.loses(all[3])
	b.want(metrics, append(own, "service_connections_total{_folded,_folded,_folded} 2", "service_folded{} 1")...)
}

// TestDualStack has one series for both families, which does not decrease when one of them is
// removed.
func TestDualStack(t *testing.T) {
	b := newBench(t)
	four, six := servicePort("web", vip, one), servicePort("web", "[fd96::1]:80", "[fd00::1]:8080")
	b.has(four, six)
	b.now()
	b.kernel.Add(flow(1, vip, one, 1), flow(2, "[fd96::1]:80", "[fd00::1]:8080", 1))
	b.want("service_connections_total", "service_connections_total{ns,web,80} 2")
	b.loses(six)
	b.want("service_connections_total", "service_connections_total{ns,web,80} 2")
	b.loses(four)
	b.want("service_connections_total")
}

// metered is a mode that counts traffic itself.
type metered struct {
	samples []proxy.Sample
	err     error
	asked   int
}

func (m *metered) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.asked++
	for _, s := range m.samples {
		yield(s)
	}
	return m.err
}

// TestMetered adds what a mode counts after the first read, even if its counters are reset.
func TestMetered(t *testing.T) {
	m := &metered{}
	b := newBench(t, func(s *Settings) { s.Metered, s.Flows, s.Ends = m, nil, nil })
	b.has(servicePort("web", vip, one), servicePort("none", "10.96.0.3:80"))
	sample := func(connections, bytes uint64) proxy.Sample {
		return proxy.Sample{
			Protocol: proxy.TCP, Frontend: netip.MustParseAddrPort(vip), Endpoint: netip.MustParseAddrPort(one),
			Traffic: proxy.Traffic{Connections: connections, Active: 1, Bytes: [2]uint64{bytes, 0}, Packets: [2]uint64{1, 1}},
		}
	}
	refused := func(vip string, why proxy.Reason, packets uint64) proxy.Sample {
		return proxy.Sample{
			Protocol: proxy.TCP, Frontend: netip.MustParseAddrPort(vip), Refused: why,
			Traffic: proxy.Traffic{Packets: [2]uint64{packets}},
		}
	}
	metrics := "service_connections_total service_active_connections service_bytes_total service_refused_packets_total"
	step := func(connections, bytes, none, ranges uint64, want ...string) {
		t.Helper()
		m.samples = []proxy.Sample{
			sample(connections, bytes), refused("10.96.0.3:80", proxy.NoEndpoints, none), refused(vip, proxy.SourceRange, ranges),
			refused("10.96.0.99:80", proxy.NoEndpoints, 7),
		}
		b.want(metrics, want...)
	}
	web := func(connections, in string) []string {
		return []string{
			"service_active_connections{ns,web,80} 1", "service_connections_total{ns,web,80} " + connections,
			"service_bytes_total{ns,web,80,in} " + in, "service_bytes_total{ns,web,80,out} 0",
		}
	}
	none := []string{
		"service_active_connections{ns,none,80} 0", "service_connections_total{ns,none,80} 0",
		"service_bytes_total{ns,none,80,in} 0", "service_bytes_total{ns,none,80,out} 0",
	}
	step(10, 1000, 0, 5, web("0", "0")...)
	both := slices.Concat(none, []string{"service_refused_packets_total{ns,none,80,NoEndpoints} 3", "service_refused_packets_total{ns,web,80,SourceRange} 1"})
	step(12, 1500, 3, 6, slices.Concat(web("2", "500"), both)...)
	step(1, 20, 3, 6, slices.Concat(web("3", "520"), both)...)
	m.err = errors.New("out of order")
	step(100, 2000, 30, 60, slices.Concat(web("3", "520"), both)...)
}

// TestReadingIsBounded checks that flows are dumped once a second at most, however many callers
// ask, and less often the longer a dump takes.
func TestReadingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.has(servicePort("web", vip, one))
		slow := time.Duration(0)
		b.settings.Flows = &racing{b.kernel, func(bool) { time.Sleep(slow / 2) }}
		dumps := func(seconds int) int {
			b.nextRead = time.Time{}
			b.kernel.Reset()
			for range 10 * seconds {
				for _, m := range b.Metrics(t.Context()) {
					m.Read(func(float64, ...string) {})
				}
				time.Sleep(100 * time.Millisecond)
			}
			return b.kernel.Reset().Dumps
		}
		if n := dumps(100); n > 101 || n < 90 {
			t.Errorf("%d dumps in 100 seconds", n)
		}
		if slow = 2 * time.Second; dumps(300) > 6 {
			t.Error("dumps of two seconds take more than three percent of the time")
		}
	})
}

// slowFlows delays dumps.
type slowFlows struct{ ct.Interface }

func (k slowFlows) Each(ctx context.Context, begin func(), each func(*ct.Flow)) error {
	time.Sleep(2 * time.Second)
	return k.Interface.Each(ctx, begin, each)
}

// TestReadersThatGiveUp checks that callers that give up during a dump return immediately, and that
// the count continues for others: of flows, and of the mode.
func TestReadersThatGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &metered{}
		b := newBench(t, func(s *Settings) { s.Metered, s.Flows = m, slowFlows{s.Flows} })
		b.has(servicePort("web", vip, one))
		b.kernel.Add(flow(1, vip, one, 1))
		began := time.Now()
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if b.Refresh(impatient); time.Since(began) != time.Second {
			t.Errorf("waited for %v", time.Since(began))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if rows, _ := b.Rows(); len(rows) != 1 || m.asked != 1 || b.failed {
			t.Errorf("rows %+v, the mode was asked %d times, failed: %t", rows, m.asked, b.failed)
		}
	})
}

// TestCloseDuringRead checks that Close waits for a dump, which uses what is closed.
func TestCloseDuringRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &metered{}
		b := newBench(t, func(s *Settings) { s.Metered, s.Flows = m, slowFlows{s.Flows} })
		b.has(servicePort("web", vip, one))
		go b.Refresh(t.Context())
		synctest.Wait()
		if err := b.Close(); err != nil || m.asked != 1 {
			t.Errorf("closed before the mode was asked, error %v", err)
		}
	})
}

// TestReadersThatGo checks that callers that have gone do not keep others from current counts.
func TestReadersThatGo(t *testing.T) {
	b := newBench(t)
	b.has(servicePort("web", vip, one))
	b.kernel.Add(flow(1, vip, one, 1))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	b.Refresh(gone)
	b.Refresh(t.Context())
	if rows, _ := b.Rows(); len(rows) != 1 || rows[0].Connections != 1 {
		t.Errorf("%+v", rows)
	}
}

// stuck is a mode whose counters cannot be read for a while.
type stuck chan struct{}

func (s stuck) Traffic(context.Context, func(proxy.Sample)) error {
	<-s
	return nil
}

// TestStuckKernel checks that callers do not wait for a kernel that does not answer, however many
// there are, and that counting resumes when it does.
func TestStuckKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(stuck)
		b := newBench(t, func(s *Settings) { s.Metered = answers })
		b.has(servicePort("web", vip, one))
		b.kernel.Add(flow(1, vip, one, 1))
		began := time.Now()
		var asking sync.WaitGroup
		for range 10 {
			asking.Go(func() { b.Refresh(t.Context()) })
		}
		if asking.Wait(); time.Since(began) != refreshWait {
			t.Errorf("waited for %v", time.Since(began))
		}
		close(answers)
		synctest.Wait()
		b.now()
		if rows, _ := b.Rows(); len(rows) != 1 || rows[0].Connections != 1 {
			t.Errorf("%+v", rows)
		}
	})
}

// TestRun reads events of ended flows, many at a time, until it is stopped.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ended := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- b.Run(ctx) }()
		synctest.Wait()
		b.has(servicePort("web", vip, one))
		synctest.Wait()
		for n := range 10 {
			b.kernel.Add(flow(n, vip, one, 1))
			b.ends(flow(n, vip, one, 1))
		}
		time.Sleep(time.Second)
		b.mu.Lock()
		if n := b.rows[servicePort("web", vip).Key].ended[connections]; n != 10 {
			t.Errorf("%d flows have ended; want 10", n)
		}
		b.mu.Unlock()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLargeCounts counts more bytes than fit in 32 bits.
func TestLargeCounts(t *testing.T) {
	b := newBench(t)
	b.has(servicePort("web", vip, one))
	b.now()
	const many = math.MaxUint32 * 1000
	b.kernel.Add(flow(1, vip, one, many))
	b.now()
	if n, _, _ := b.of(servicePort("web", vip).Key); n.Bytes != [2]uint64{many, 10 * many} {
		t.Errorf("bytes %v; want %d and ten times that", n.Bytes, many)
	}
}

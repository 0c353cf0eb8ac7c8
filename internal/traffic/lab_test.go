package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/internal/config"
	"sluice/internal/conformance/lab"
	"sluice/internal/dataplane"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/ipvs/ipvstest"
	"sluice/internal/kernel/link"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// patience is how long traffic may take to be counted.
const patience = 20 * time.Second

// The addresses of the lab's Services, pods and clients.
var (
	podAt     = netip.MustParseAddrPort("10.0.0.11:8080")
	podAt6    = netip.MustParseAddrPort("[fd00:10::11]:8080")
	vipAt     = netip.MustParseAddrPort("172.30.0.10:80")
	vipAt6    = netip.MustParseAddrPort("[fd00:30::10]:80")
	balancer  = netip.MustParseAddrPort("198.51.100.1:80")
	nodePort  = netip.MustParseAddrPort("192.168.0.2:30080")
	rawAt     = netip.MustParseAddrPort("172.30.0.10:81")
	rawAt6    = netip.MustParseAddrPort("[fd00:30::10]:81")
	rawPodAt  = netip.MustParseAddrPort("10.0.0.11:8081")
	rawPodAt6 = netip.MustParseAddrPort("[fd00:10::11]:8081")
	emptyAt   = netip.MustParseAddrPort("172.30.0.11:80")
	farAt     = netip.MustParseAddrPort("198.51.100.2:80")
	clientIP  = netip.MustParseAddr("10.0.0.9")
	clientIP6 = netip.MustParseAddr("fd00:10::9")
	outsideIP = netip.MustParseAddr("203.0.113.2")
	strangeIP = netip.MustParseAddr("203.0.113.99")
)

// testNode is a node with a mode in force and a Collector, and a pod that serves.
type testNode struct {
	*testing.T
	*lab.Lab
	mode   dataplane.Mode
	plane  proxy.Dataplane
	close  func() // what open has opened
	ebpf   mode.EBPF
	client *lab.Host
	pod    *lab.Host
	count  *Collector
	rows   *proxy.Delta
	node   *proxy.Node
}

func newNode(t *testing.T, name config.ProxyMode) *testNode {
	t.Helper()
	lab.Require(t)
	if name == config.IPVS {
		ipvstest.Require(t)
	}
	n := &testNode{T: t}
	var err error
	if name == config.EBPF {
		n.useSockets()
	}
	if n.Lab, err = lab.New(lab.Config{Cgroup: n.ebpf.CgroupRoot}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.check(n.Lab.Close()) })
	if n.mode, err = dataplane.Of(name); err != nil {
		t.Fatal(err)
	}
	n.pod, err = n.AddPod("pod", podAt.Addr(), podAt6.Addr())
	n.check(err)
	n.serve(n.pod)
	n.client, err = n.AddPod("client", clientIP, clientIP6)
	n.check(err)
	n.open()
	if name == config.EBPF {
		n.warm()
	}
	n.collect()
	return n
}

func (n *testNode) check(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// serve makes a pod read a connection to its end and then reply with bytesBack.
func (n *testNode) serve(pod *lab.Host) {
	n.Helper()
	for _, a := range []netip.AddrPort{podAt, podAt6} {
		var ln net.Listener
		n.check(pod.Do(func() (err error) {
			ln, err = net.Listen("tcp", a.String())
			return err
		}))
		n.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					if _, err := io.Copy(io.Discard, c); err == nil {
						_, _ = c.Write(make([]byte, bytesBack))
					}
				}()
			}
		}()
		udp, err := pod.Listen(proxy.UDP, a)
		n.check(err)
		n.Cleanup(func() { udp.Close() })
	}
}

// bytesThere and bytesBack are what a connection carries.
const bytesThere, bytesBack = 100_000, 300_000

// open puts the mode in force with the lab's Services.
func (n *testNode) open() {
	n.Helper()
	families, err := n.probe()
	n.check(err)
	n.node = &proxy.Node{
		Name: "here", NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
		LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/64")}},
	}
	n.check(n.Node().Do(func() (err error) {
		n.check(sysctl.Kernel{}.Write("net/netfilter/nf_conntrack_acct", "1"))
		n.plane, err = n.mode.Open(n.Context(), dataplane.Settings{
			MasqueradeBit: 14, Families: families, Relay: mode.DefaultRelay(), EBPF: n.ebpf, CountBytes: true,
		})
		return err
	}))
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.Context()))
	if r, ok := n.plane.(proxy.Runner); ok {
		go func() { ended <- r.Run(ctx) }()
	} else {
		ended <- nil
	}
	plane := n.plane
	n.close = sync.OnceFunc(func() {
		cancel()
		n.check(errors.Join(<-ended, plane.Close()))
	})
	n.Cleanup(n.close)
	state := proxy.NewState()
	state.Node, n.rows = n.node, &proxy.Delta{}
	for _, sp := range services() {
		state.Rows[sp.Key] = sp
		n.rows.Upserts = append(n.rows.Upserts, proxy.Upsert{New: sp})
	}
	n.check(n.Node().Do(func() error { return proxytest.Sync(n.Context(), n.plane, state) }))
}

func (n *testNode) probe() (families []proxy.Family, err error) {
	err = n.Node().Do(func() error {
		families, err = n.mode.Probe(n.Context(), dataplane.Settings{MasqueradeBit: 14, EBPF: n.ebpf})
		return err
	})
	return families, err
}

// collect starts to count, as a daemon does when it starts.
func (n *testNode) collect() {
	n.Helper()
	s := Settings{MaxSeries: DefaultMaxSeries, Bytes: n.mode.Flows != nil, LocalAddrs: func() (all []netip.Prefix, err error) {
		err = n.Node().Do(func() error {
			all, err = link.Conn{}.LocalPrefixes()
			return err
		})
		return all, err
	}}
	if m, ok := n.plane.(proxy.Metered); ok {
		s.Metered = onNode{n, m}
	}
	n.check(n.Node().Do(func() (err error) {
		if n.mode.Flows == nil {
			return nil
		}
		var failed error
		s.Flows, err = n.mode.Flows()
		s.Ends, failed = n.mode.Ends()
		return errors.Join(err, failed)
	}))
	count := New(s)
	n.count = count
	n.Cleanup(func() { n.check(count.Close()) })
	n.count.Applied(n.node, n.rows)
	n.refresh()
}

// onNode reads what a mode has counted, in the network namespace of the node.
type onNode struct {
	*testNode
	proxy.Metered
}

func (n onNode) Traffic(ctx context.Context, yield func(proxy.Sample)) error {
	return n.Node().Do(func() error { return n.Metered.Traffic(ctx, yield) })
}

func (n *testNode) refresh() {
	n.count.nextRead = time.Time{}
	n.count.Refresh(n.Context())
}

// services are one with all kinds of frontend in both families, one without
// endpoints, one that has them only elsewhere, and one whose server is the test's.
func services() []*proxy.ServicePort {
	row := func(name string, p proxy.Protocol, frontends ...proxy.Frontend) *proxy.ServicePort {
		return &proxy.ServicePort{Key: proxy.PortKey{
			ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: name, Protocol: p}, Family: proxy.FamilyOf(frontends[0].Addr.Addr()),
		}, Frontends: frontends}
	}
	to := func(sp *proxy.ServicePort, e netip.AddrPort) *proxy.ServicePort {
		sp.Cluster, sp.UsableSomewhere = []proxy.Endpoint{{Addr: e, Local: true}}, true
		sp.Local = sp.Cluster
		return sp
	}
	web := to(row("web", proxy.TCP, proxy.Frontend{Kind: proxy.ClusterIP, Addr: vipAt}, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: balancer},
		proxy.Frontend{Kind: proxy.NodePort, Addr: netip.MustParseAddrPort("0.0.0.0:30080")}), podAt)
	web.AllowFrom = []netip.Prefix{netip.PrefixFrom(outsideIP, 32)}
	far := row("far", proxy.TCP, proxy.Frontend{Kind: proxy.LoadBalancer, Addr: farAt})
	far.External, far.UsableSomewhere = proxy.ScopeLocal, true
	far.Cluster = []proxy.Endpoint{{Addr: netip.MustParseAddrPort("100.64.9.9:80")}}
	return []*proxy.ServicePort{
		web, far,
		to(row("web", proxy.TCP, proxy.Frontend{Kind: proxy.ClusterIP, Addr: vipAt6}), podAt6),
		to(row("dns", proxy.UDP, proxy.Frontend{Kind: proxy.ClusterIP, Addr: vipAt}), podAt),
		to(row("raw", proxy.TCP, proxy.Frontend{Kind: proxy.ClusterIP, Addr: rawAt}), rawPodAt),
		to(row("raw", proxy.TCP, proxy.Frontend{Kind: proxy.ClusterIP, Addr: rawAt6}), rawPodAt6),
		to(row("raw", proxy.UDP, proxy.Frontend{Kind: proxy.ClusterIP, Addr: rawAt}), rawPodAt),
		to(row("raw", proxy.UDP, proxy.Frontend{Kind: proxy.ClusterIP, Addr: rawAt6}), rawPodAt6),
		row("empty", proxy.TCP, proxy.Frontend{Kind: proxy.ClusterIP, Addr: emptyAt}),
	}
}

func key(name string, p proxy.Protocol, f proxy.Family) proxy.PortKey {
	return proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: name, Protocol: p}, Family: f}
}

// exchange transfers the bytes of a connection in both directions.
func (n *testNode) exchange(from *lab.Host, src netip.Addr, dst netip.AddrPort) net.Conn {
	n.Helper()
	c, err := from.Dial(n.Context(), proxy.TCP, src, dst)
	n.check(err)
	n.Cleanup(func() { c.Close() })
	n.check(c.SetDeadline(time.Now().Add(patience)))
	_, err = c.Write(make([]byte, bytesThere))
	n.check(err)
	return c
}

// finish reads the reply and closes a connection.
func (n *testNode) finish(c net.Conn) {
	n.Helper()
	n.check(c.(*net.TCPConn).CloseWrite())
	got, err := io.Copy(io.Discard, c)
	if n.check(err); got != bytesBack {
		n.Fatalf("%d bytes came back; want %d", got, bytesBack)
	}
	n.check(c.Close())
}

// forget removes all flows, once the pod and the node have seen the end of all connections. The last
// packet of one would begin another flow.
func (n *testNode) forget() {
	n.Helper()
	n.await(func() string { return n.unfinished(n.pod) + n.unfinished(n.Node()) })
	n.check(n.Node().FlushConntrack())
}

// unfinished describes the TCP sockets of a host that wait for a packet.
func (n *testNode) unfinished(h *lab.Host) (all string) {
	n.Helper()
	for _, family := range []string{"tcp", "tcp6"} {
		n.check(h.Do(func() error {
			table, err := os.ReadFile("/proc/thread-self/net/" + family)
			for _, line := range strings.Split(strings.TrimSpace(string(table)), "\n")[1:] {
				const state, timeWait, listen = 3, "06", "0A"
				if f := strings.Fields(line); f[state] != timeWait && f[state] != listen {
					all += fmt.Sprintln(h.Name, line)
				}
			}
			return err
		}))
	}
	return all
}

// eventually counts until a condition holds.
func (n *testNode) eventually(is func() string) {
	n.Helper()
	n.await(func() string { n.refresh(); return is() })
}

// await waits until nothing is wrong.
func (n *testNode) await(is func() string) {
	n.Helper()
	var wrong string
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if wrong = is(); wrong == "" {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	n.Fatal(wrong)
}

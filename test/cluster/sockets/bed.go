package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/dataplane/ebpf"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
	"sluice/test/cluster/build"
	"sluice/test/cluster/testbed"
)

// bed is a node with pods: clients, the server of one Service, and the servers of
// another one that has several.
type bed struct {
	node            *lab.Host
	clients         []*lab.Host
	server          netip.Addr
	single, several netip.Addr // the Services' addresses
	cgroup          string     // where sockets are translated; empty: nowhere
	translated      func() int // how often; nil: never
	close           func() error
}

const (
	clientCount = 2
	serverCount = 4
	cpu         = 0 // of clients and servers, unless they race
)

// podRange has the addresses of our pods.
var podRange = netip.MustParsePrefix("10.0.0.0/24")

// serveAll has pods answer.
func serveAll(pods []*lab.Host) error {
	for _, p := range pods {
		n := *p.Namespace
		n.Cgroup = ""
		if err := serve(&n, cpu); err != nil {
			return err
		}
	}
	return nil
}

// row is a Service with the pods of some addresses.
func row(name string, p proxy.Protocol, at netip.AddrPort, pods []netip.Addr) *proxy.ServicePort {
	sp := &proxy.ServicePort{
		Key:             proxy.PortKey{ServicePortName: proxy.ServicePortName{Namespace: "bench", Name: name, Port: fmt.Sprint(at.Port()), Protocol: p}},
		Frontends:       []proxy.Frontend{{Kind: proxy.ClusterIP, Addr: at}},
		UsableSomewhere: true,
	}
	for _, a := range pods {
		sp.Cluster = append(sp.Cluster, proxy.Endpoint{Addr: netip.AddrPortFrom(a, at.Port()), Local: true})
	}
	sp.Local = sp.Cluster
	return sp
}

// newBed makes a node with mode ebpf: rules for all sockets, and programs for those
// that are in the cgroup.
func newBed(ctx context.Context, settings mode.Settings) (_ *bed, err error) {
	cgroup := settings.EBPF.CgroupRoot
	l, err := lab.New(lab.Config{Cgroup: cgroup})
	if err != nil {
		return nil, err
	}
	b := &bed{
		node: l.Node(), cgroup: cgroup, close: l.Close,
		single: netip.MustParseAddr("172.30.0.10"), several: netip.MustParseAddr("172.30.0.11"),
	}
	var pods []*lab.Host
	var addrs []netip.Addr
	for i := range clientCount + serverCount {
		a := netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)})
		h, err := l.AddPod(a.String(), a)
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		pods, addrs = append(pods, h), append(addrs, a)
	}
	b.clients, b.server, addrs = pods[:clientCount], addrs[clientCount], addrs[clientCount:]
	s := proxy.NewState()
	s.Node = &proxy.Node{LocalPods: proxy.LocalTrafficDetector{Sources: []netip.Prefix{podRange}}}
	for _, sp := range []*proxy.ServicePort{
		row("single", proxy.TCP, netip.AddrPortFrom(b.single, newPort), addrs[:1]),
		row("single", proxy.TCP, netip.AddrPortFrom(b.single, openPort), addrs[:1]),
		row("single", proxy.TCP, netip.AddrPortFrom(b.single, bulkPort), addrs[:1]),
		row("single", proxy.UDP, netip.AddrPortFrom(b.single, udpPort), addrs[:1]),
		row("several", proxy.UDP, netip.AddrPortFrom(b.several, udpPort), addrs),
	} {
		s.Rows[sp.Key] = sp
	}
	if err := errors.Join(serveAll(pods[clientCount:]), b.run(ctx, s, settings)); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// run starts the dataplane.
func (b *bed) run(ctx context.Context, s *proxy.State, settings mode.Settings) error {
	var d *ebpf.Dataplane
	err := b.node.Do(func() (err error) {
		d, err = ebpf.Open(ctx, settings)
		for range 2 { // the second one begins not to track, if that is asked for
			if err == nil {
				err = proxytest.Sync(ctx, d, s)
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("start mode ebpf: %w", err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(running) }()
	end := b.close
	b.close = func() error {
		stop()
		err := errors.Join(<-ended, d.Close())
		failed := b.node.Do(func() error { // or the maps of all series are there in the end
			_, err := ebpf.Cleanup(ctx, settings, nil)
			return err
		})
		return errors.Join(err, failed, end())
	}
	b.translated = func() (n int) {
		for _, m := range d.Metrics(ctx) {
			if m.Name == "ebpf_translated_total" {
				m.Read(func(v float64, _ ...string) { n += int(v) })
			}
		}
		return n
	}
	return nil
}

// newKubeProxyBed makes a node with kube-proxy, and waits until it serves.
func newKubeProxyBed(ctx context.Context, say func(string)) (_ *bed, err error) {
	builder, err := build.New(say)
	if err != nil {
		return nil, err
	}
	program, err := builder.Foreign(ctx, build.Kubernetes("kube-proxy"))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "sluice-sockets-")
	if err != nil {
		return nil, err
	}
	c, err := testbed.Start(ctx, testbed.Settings{Dir: dir, Bare: true, KubeProxy: program})
	if err != nil {
		return nil, err
	}
	b := &bed{close: func() error { return errors.Join(c.Close(), c.Remove()) }}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	n, err := c.AddNode(ctx)
	if err != nil {
		return nil, err
	}
	b.node = n.Host
	var members []testbed.Member
	for i := range clientCount + serverCount {
		p, err := n.AddPod(fmt.Sprintf("pod-%d", i))
		if err != nil {
			return nil, err
		}
		if i < clientCount {
			b.clients = append(b.clients, p.Host)
			continue
		}
		if err := serveAll([]*lab.Host{p.Host}); err != nil {
			return nil, err
		}
		members = append(members, testbed.Member{Pod: p})
	}
	b.server = members[0].Pod.Addrs[proxy.IPv4]
	if b.single, err = publish(ctx, c, "single", members[:1]); err != nil {
		return nil, err
	}
	if b.several, err = publish(ctx, c, "several", members); err != nil {
		return nil, err
	}
	p, err := c.StartProxy(n, testbed.Proxy{KubeProxy: true})
	if err != nil {
		return nil, err
	}
	end := b.close
	b.close = func() error { return errors.Join(p.Stop(), end()) }
	return b, b.await(ctx)
}

// publish makes a Service with pods behind it and returns its address.
func publish(ctx context.Context, c *testbed.Cluster, name string, pods []testbed.Member) (netip.Addr, error) {
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1.ServiceSpec{IPFamilies: []v1.IPFamily{v1.IPv4Protocol}},
	}
	for port, protocol := range map[int32]v1.Protocol{newPort: v1.ProtocolTCP, openPort: v1.ProtocolTCP, bulkPort: v1.ProtocolTCP, udpPort: v1.ProtocolUDP} {
		svc.Spec.Ports = append(svc.Spec.Ports, v1.ServicePort{Name: fmt.Sprint("p", port), Protocol: protocol, Port: port, TargetPort: intstr.FromInt32(port)})
	}
	svc, err := c.Client.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("create Service %s: %w", name, err)
	}
	if err := c.Publish(ctx, svc, pods...); err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(svc.Spec.ClusterIP)
}

// await waits until both Services answer.
func (b *bed) await(ctx context.Context) error {
	const patience, pause = 30 * time.Second, 50 * time.Millisecond
	return b.node.Do(func() error {
		for _, a := range []netip.Addr{b.single, b.several} {
			to, err := socketAddr(a, newPort), error(nil)
			for end := time.Now().Add(patience); ; <-time.After(pause) {
				var fd int
				if fd, err = open(unix.SOCK_STREAM, to, true); err == nil {
					err = errors.Join(query(fd, to, true), unix.Close(fd))
				}
				if err == nil || ctx.Err() != nil || time.Now().After(end) {
					break
				}
			}
			if err != nil {
				return fmt.Errorf("wait for %v: %w", a, err)
			}
		}
		return nil
	})
}

// within returns a namespace as a host's, for sockets in another cgroup.
func within(h *lab.Host, cgroup string) *traffic.Namespace {
	n := *h.Namespace
	n.Cgroup = cgroup
	return &n
}

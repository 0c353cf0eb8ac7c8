package cluster

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice/internal/proxy"
	"sluice/test/cluster/testbed"
)

// echoPort is where a pod has a listener that keeps its connections.
const echoPort = 8081

// echo makes a pod send back what it gets, for as long as a connection lasts.
func (s *scene) echo(p *testbed.Pod) {
	s.Helper()
	for _, a := range p.Addrs {
		var ln net.Listener
		err := p.Host.Do(func() error {
			var err error
			ln, err = net.Listen("tcp", netip.AddrPortFrom(a, echoPort).String())
			return err
		})
		if err != nil {
			s.Fatalf("listen in %s: %v", p.Name, err)
		}
		s.Cleanup(func() { _ = ln.Close() })
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return // the test has ended
				}
				go func() {
					_, _ = io.Copy(conn, conn)
					_ = conn.Close()
				}()
			}
		}()
	}
}

// connection is one that lasts.
type connection struct {
	net.Conn
	name string
}

// connect opens a connection that lasts until the test ends, as soon as there
// is someone to talk to.
func (s *scene) connect(one stream) connection {
	s.Helper()
	from, to := one.from, one.to
	c := connection{name: fmt.Sprintf("%v connection from %s to %v", one.protocol, from.name, to)}
	s.await(c.name, "open", func() string {
		var err error
		if c.Conn, err = from.host.Dial(s.Context(), one.protocol, from.source(to), to); err != nil {
			return err.Error()
		}
		return "open"
	})
	s.Cleanup(func() { _ = c.Close() })
	return c
}

// loose is a UDP socket that is not connected. Answers count only if they come from
// where it asks.
type loose struct {
	*net.UDPConn
	to netip.AddrPort
}

func (l loose) Write(b []byte) (int, error) { return l.WriteToUDPAddrPort(b, l.to) }

func (l loose) Read(b []byte) (int, error) {
	n, from, err := l.ReadFromUDPAddrPort(b)
	if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); err == nil && from != l.to {
		err = fmt.Errorf("an answer from %v", from)
	}
	return n, err
}

// askFrom makes a UDP socket that lasts and is not connected.
func (s *scene) askFrom(one stream) connection {
	s.Helper()
	l := loose{to: one.to}
	err := one.from.host.Do(func() (err error) {
		l.UDPConn, err = net.ListenUDP("udp", nil)
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = l.Close() })
	return connection{l, fmt.Sprintf("socket of %s that asks %v", one.from.name, one.to)}
}

// exchange sends a word through each connection and waits for it to come back.
func (s *scene) exchange(when string, conns ...connection) {
	s.Helper()
	for _, c := range conns {
		word := []byte("hello")
		err := c.SetDeadline(time.Now().Add(5 * time.Second))
		if err == nil {
			_, err = c.Write(word)
		}
		if err == nil {
			_, err = io.ReadFull(c, word)
		}
		if err != nil {
			s.Errorf("%s: %s: %v", when, c.name, err)
		}
	}
}

// TestLastingConnections keeps connections open while their endpoint leaves the
// Service, while the proxies restart and while the Service goes away.
func TestLastingConnections(t *testing.T) {
	s := newScene(t)
	pods := s.pods("web")[:2]
	s.echo(pods[0])
	svc := s.service("web", func(svc *v1.Service) {
		svc.Spec.Type = v1.ServiceTypeNodePort
		svc.Spec.Ports = svc.Spec.Ports[:1]
		svc.Spec.Ports[0].TargetPort = intstr.FromInt32(echoPort)
	})
	s.publish(svc, ready(pods[0])...)
	var conns []connection
	for family, to := range clusterIPs(svc) {
		for i, from := range s.clients {
			conns = append(conns,
				s.connect(stream{proxy.TCP, from, to}),
				s.connect(stream{proxy.TCP, outside(bed.Nodes[i]), nodePorts(bed.Nodes[i], svc)[family]}))
		}
	}
	s.exchange("at first", conns...)
	s.publish(svc, ready(pods[1])...)
	for _, from := range s.clients { // nobody listens on that pod's port
		s.expectBy(proxy.TCP, probe{from, clusterIPs(svc)[0], "reset"})
	}
	s.exchange("after the endpoint has left", conns...)
	for i, n := range bed.Nodes {
		s.restart(i, n)
	}
	s.exchange("after the proxies' restart", conns...)
	s.clear()
	for _, from := range s.clients {
		s.expectBy(proxy.TCP, probe{from, clusterIPs(svc)[0], "silence"})
	}
	s.exchange("after the Service is gone", conns...)
}

// restart stops the proxy of a node and starts another.
func (s *scene) restart(i int, n *testbed.Node) {
	s.Helper()
	if err := s.proxies[i].Stop(); err != nil {
		s.Fatal(err)
	}
	s.proxies[i] = s.startProxy(n, testbed.Proxy{})
}

// TestRestartUnderLoad restarts the proxies while requests keep coming, and
// changes the endpoints while a node has no proxy. No request may fail.
func TestRestartUnderLoad(t *testing.T) {
	s := newScene(t)
	pods := s.pods("web")
	svc, l := s.loaded(ready(pods[0])...)
	for i, n := range bed.Nodes {
		if err := s.proxies[i].Stop(); err != nil {
			t.Fatal(err)
		}
		s.publish(svc, ready(pods[(i+1)%len(pods)])...)
		s.proxies[i] = s.startProxy(n, testbed.Proxy{})
		s.awaitAnswers(l, pods[(i+1)%len(pods)])
		s.awaitQuiet(l, pods[i])
	}
	s.report(l)
}

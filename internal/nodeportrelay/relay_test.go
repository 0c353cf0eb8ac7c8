package nodeportrelay

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scene is a node that relays, and a pod on its bridge, which passes packets to netfilter.
type scene struct {
	*testing.T
	*Relay
	node, pod *lab.Host
	state     *proxy.State

	mu       sync.Mutex
	failures []error
}

func newScene(t *testing.T) *scene {
	l := lab.ForTest(t, lab.Config{Bridged: true, BridgeNetfilter: true})
	pod, err := l.AddPod("pod", netip.MustParseAddr("fd00:10::10"))
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{T: t, node: l.Node(), pod: pod, state: proxy.NewState()}
	s.Relay = New(func(_ proxy.PortKey, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failures = append(s.failures, err)
	})
	s.within = l.Node().Do
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// apply takes a step as the engine reports it.
func (s *scene) apply(d *proxy.Delta) {
	s.state.Apply(d)
	s.Applied(s.state, d)
}

func (s *scene) relays(on bool) { s.apply(&proxy.Delta{Node: &proxy.Node{RelaysLoopback: on}}) }

// set serves a NodePort with endpoints of the pod; none removes the row.
func (s *scene) set(p proxy.Protocol, number uint16, change func(*proxy.ServicePort), ports ...uint16) {
	row := &proxy.ServicePort{
		Key:       proxy.PortKey{Family: proxy.IPv6, ServicePortName: proxy.ServicePortName{Namespace: "ns", Name: "web", Protocol: p}},
		Frontends: []proxy.Frontend{{Kind: proxy.NodePort, Addr: netip.AddrPortFrom(netip.IPv6Unspecified(), number)}},
	}
	for _, port := range ports {
		row.Cluster = append(row.Cluster, proxy.Endpoint{Addr: netip.AddrPortFrom(s.pod.Addrs[0], port)})
	}
	if change != nil {
		change(row)
	}
	s.apply(&proxy.Delta{Upserts: []proxy.Upsert{{Old: s.state.Rows[row.Key], New: row}}})
}

// serve starts a server of the pod.
func (s *scene) serve(p proxy.Protocol, port uint16) {
	s.Helper()
	l, err := s.pod.Listen(p, netip.AddrPortFrom(s.pod.Addrs[0], port))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = l.Close() })
}

// ask returns the port of the server that answers a client at [::1], or the error.
func (s *scene) ask(p proxy.Protocol, number uint16) (by uint16, err error) {
	err = s.node.Do(func() error {
		a, err := traffic.Ask(p, netip.AddrPortFrom(loopback, number), time.Second)
		by = a.By.Port()
		return err
	})
	return by, err
}

// eventually waits until a condition holds.
func (s *scene) eventually(what string, holds func() bool) {
	s.Helper()
	tick, end := time.NewTicker(5*time.Millisecond), time.After(20*time.Second)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-end:
			s.Fatalf("not within 20s: %s", what)
		}
	}
}

func (s *scene) answers(p proxy.Protocol, number, by uint16) {
	s.Helper()
	s.eventually("an answer", func() bool { got, err := s.ask(p, number); return err == nil && got == by })
}

func (s *scene) refuses(p proxy.Protocol, number uint16) {
	s.Helper()
	s.eventually("a refusal", func() bool { _, err := s.ask(p, number); return errors.Is(err, syscall.ECONNREFUSED) })
}

// TestRelay follows a NodePort at [::1] through its life.
func TestRelay(t *testing.T) {
	for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
		t.Run(p.String(), func(t *testing.T) {
			s := newScene(t)
			s.serve(p, 8080)
			s.serve(p, 8081)
			s.set(p, 30080, nil, 8080)
			s.refuses(p, 30080) // The node does not relay yet.
			s.relays(true)
			s.answers(p, 30080, 8080)
			s.set(p, 30080, nil, 8081)
			s.answers(p, 30080, 8081)
			s.set(p, 30080, nil)
			s.refuses(p, 30080)
			s.set(p, 30081, nil, 8080)
			s.answers(p, 30081, 8080)
			s.refuses(p, 30080)
			s.apply(&proxy.Delta{Removes: []*proxy.ServicePort{s.state.Rows[s.state.Keys()[0]]}})
			s.refuses(p, 30081)
			s.set(p, 30080, nil, 8080)
			s.answers(p, 30080, 8080)
			s.relays(false)
			s.refuses(p, 30080)
			if keys := s.index.Keys(); len(keys) > 0 {
				t.Errorf("rows are kept: %v", keys)
			}
		})
	}
}

// TestPolicy checks that the node uses all endpoints whatever externalTrafficPolicy is, as
// at its other addresses, and that a client keeps its endpoint with session affinity.
func TestPolicy(t *testing.T) {
	s := newScene(t)
	s.relays(true)
	ports := []uint16{8080, 8081, 8082, 8083}
	for _, port := range ports {
		s.serve(proxy.TCP, port)
	}
	s.set(proxy.TCP, 30080, func(row *proxy.ServicePort) { row.External = proxy.ScopeLocal }, ports...)
	seen := map[uint16]bool{}
	s.eventually("all endpoints", func() bool {
		if by, err := s.ask(proxy.TCP, 30080); err == nil {
			seen[by] = true
		}
		return len(seen) == len(ports)
	})
	s.set(proxy.TCP, 30081, func(row *proxy.ServicePort) { row.Affinity = time.Hour }, ports...)
	var first uint16
	s.eventually("an answer", func() (ok bool) {
		var err error
		first, err = s.ask(proxy.TCP, 30081)
		return err == nil
	})
	for range 20 {
		if by, err := s.ask(proxy.TCP, 30081); err != nil || by != first {
			t.Fatalf("answered by %d, %v; want %d", by, err, first)
		}
	}
}

// TestDeadEndpoints checks that another endpoint is used where one refuses, and that a
// client is reset if all do.
func TestDeadEndpoints(t *testing.T) {
	s := newScene(t)
	s.relays(true)
	s.serve(proxy.TCP, 8080)
	s.set(proxy.TCP, 30080, nil, 1, 2, 8080)
	s.answers(proxy.TCP, 30080, 8080)
	for range 10 {
		if by, err := s.ask(proxy.TCP, 30080); err != nil || by != 8080 {
			t.Fatalf("answered by %d, %v", by, err)
		}
	}
	s.set(proxy.TCP, 30080, nil, 1, 2)
	s.eventually("a reset", func() bool {
		_, err := s.ask(proxy.TCP, 30080)
		return errors.Is(err, syscall.ECONNRESET)
	})
}

// TestStream sends much in both directions, one after the other, and ends each direction
// alone. The connection outlives its Service.
func TestStream(t *testing.T) {
	s := newScene(t)
	s.relays(true)
	sent := make([]byte, 4<<20)
	_, _ = rand.Read(sent)
	var server net.Listener
	if err := s.pod.Do(func() (err error) {
		server, err = net.Listen("tcp6", netip.AddrPortFrom(s.pod.Addrs[0], 8080).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	accepted := make(chan struct{})
	go func() { // It answers with what it got, once it has got everything.
		c, err := server.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		close(accepted)
		if got, err := io.ReadAll(c); err == nil {
			_, _ = c.Write(got)
		}
	}()
	s.set(proxy.TCP, 30080, nil, 8080)
	s.eventually("a socket", func() bool { return s.listening.Load() == 1 })
	var conn net.Conn
	if err := s.node.Do(func() (err error) {
		conn, err = net.Dial("tcp6", "[::1]:30080")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(sent[:1<<20]); err != nil {
		t.Fatal(err)
	}
	<-accepted
	s.apply(&proxy.Delta{Removes: []*proxy.ServicePort{s.state.Rows[s.state.Keys()[0]]}})
	s.eventually("no socket", func() bool { return s.listening.Load() == 0 })
	if _, err := conn.Write(sent[1<<20:]); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("got %d bytes, %v; want the %d sent", len(got), err, len(sent))
	}
}

// TestPortInUse checks that a port of another process is reported once, counted, and taken
// when it is free and the state changes.
func TestPortInUse(t *testing.T) {
	s := newScene(t)
	other, err := s.node.Listen(proxy.TCP, netip.AddrPortFrom(loopback, 30080))
	if err != nil {
		t.Fatal(err)
	}
	s.serve(proxy.TCP, 8080)
	s.relays(true)
	s.set(proxy.TCP, 30080, nil, 8080)
	s.eventually("a failure", func() bool { return s.unbound.Load() > 0 })
	before := s.unbound.Load()
	s.set(proxy.TCP, 30080, nil, 8080)
	s.eventually("another failure", func() bool { return s.unbound.Load() > before })
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	s.set(proxy.TCP, 30080, nil, 8080)
	s.answers(proxy.TCP, 30080, 8080)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.failures) != 1 || !errors.Is(s.failures[0], syscall.EADDRINUSE) {
		t.Errorf("reported %v", s.failures)
	}
	values := map[string]float64{}
	for _, m := range s.Metrics() {
		m.Read(func(v float64, labels ...string) { values[m.Name+" "+strings.Join(labels, ",")] = v })
	}
	if values["nftables_localhost_nodeport_listeners IPv6"] != 1 || values["nftables_localhost_nodeport_listener_creation_failures_total IPv6"] < 2 {
		t.Errorf("metrics %v", values)
	}
}

// TestNotRelayed checks which rows are left alone.
func TestNotRelayed(t *testing.T) {
	at := func(f proxy.Family, p proxy.Protocol, k proxy.Kind) *proxy.ServicePort {
		return &proxy.ServicePort{
			Key:       proxy.PortKey{Family: f, ServicePortName: proxy.ServicePortName{Protocol: p}},
			Frontends: []proxy.Frontend{{Kind: k, Addr: netip.AddrPortFrom(f.Unspecified(), 30080)}},
		}
	}
	n := &proxy.Node{RelaysLoopback: true}
	got := []uint16{
		nodePort(at(proxy.IPv6, proxy.TCP, proxy.NodePort), n), nodePort(at(proxy.IPv6, proxy.UDP, proxy.NodePort), n),
		nodePort(at(proxy.IPv6, proxy.SCTP, proxy.NodePort), n), nodePort(at(proxy.IPv4, proxy.TCP, proxy.NodePort), n),
		nodePort(at(proxy.IPv6, proxy.TCP, proxy.ClusterIP), n), nodePort(at(proxy.IPv6, proxy.TCP, proxy.NodePort), &proxy.Node{}),
	}
	if want := []uint16{30080, 30080, 0, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("ports %v, want %v", got, want)
	}
}

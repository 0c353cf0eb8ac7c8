package nodeportrelay

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"sluice/internal/balance"
	"sluice/internal/proxy"
)

const (
	// bindRetry is the time between attempts to bind a port that another process has.
	bindRetry = 5 * time.Second

	// dialTimeout is how long an endpoint may take to accept a connection, and maxTries
	// how many endpoints are tried.
	dialTimeout = 5 * time.Second
	maxTries    = 3

	// maxFlows bounds the connections and the UDP sessions, together. Further ones wait
	// until others end.
	maxFlows = 4096
)

// loopback is the address of all clients.
var loopback = netip.IPv6Loopback()

// Relay opens a socket at [::1] for each IPv6 NodePort that has endpoints, while
// [proxy.Node.RelaysLoopback] is set.
type Relay struct {
	failed func(proxy.PortKey, error)
	within func(func() error) error // calls a function that opens sockets; tests choose the network namespace
	wake   chan struct{}            // tells Run to reconcile
	flows  chan struct{}            // holds a value for each flow
	index  *balance.Index           // has rows only while the node relays
	node   atomic.Pointer[proxy.Node]

	listening atomic.Int64 // open sockets
	unbound   atomic.Int64 // failures to bind a port

	// These belong to the goroutine of Run.
	open     map[port]*listener
	failures map[port]string // why a port is not bound, as logged
	running  sync.WaitGroup  // goroutines of listeners and flows
}

// port is where a socket listens, at [::1].
type port struct {
	protocol proxy.Protocol
	number   uint16
}

// target is whose endpoints the clients of a port get.
type target struct {
	*balance.Service
	scope proxy.Scope
}

// listener is the socket of a port.
type listener struct {
	io.Closer
	target atomic.Pointer[target]
	closed chan struct{}
}

// New returns a relay that does not listen before Run. Failed is called when a port
// cannot be bound, and again when the reason changes, by one goroutine.
func New(failed func(proxy.PortKey, error)) *Relay {
	r := &Relay{
		failed: failed, within: func(f func() error) error { return f() },
		wake: make(chan struct{}, 1), flows: make(chan struct{}, maxFlows), index: balance.NewIndex(),
		open: map[port]*listener{}, failures: map[port]string{},
	}
	r.node.Store(&proxy.Node{})
	return r
}

// Applied adopts a changed state. Its cost is linear in the change.
func (r *Relay) Applied(state *proxy.State, d *proxy.Delta) {
	on, was := state.Node.RelaysLoopback, r.node.Load().RelaysLoopback
	if !on && !was {
		return
	}
	r.node.Store(state.Node)
	var changed []proxy.PortKey
	switch {
	case !on:
		changed = r.index.Keys()
	case !was:
		changed = state.Keys()
	default:
		for _, u := range d.Upserts {
			changed = append(changed, u.New.Key)
		}
		for _, row := range d.Removes {
			changed = append(changed, row.Key)
		}
	}
	want := map[proxy.PortKey]*proxy.ServicePort{}
	for _, key := range changed {
		if row := state.Rows[key]; on && row != nil && nodePort(row, state.Node) != 0 {
			want[key] = row
		}
	}
	remove := r.index.Update(changed, want)
	if remove != nil {
		remove()
	}
	if len(want) == 0 && remove == nil {
		return // The change is of others' rows.
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// nodePort returns the port at which a row is relayed, or 0.
func nodePort(row *proxy.ServicePort, n *proxy.Node) uint16 {
	if row.Key.Family != proxy.IPv6 || !n.Relays(row.Key.Protocol, loopback) {
		return 0
	}
	for _, f := range row.Frontends {
		if f.Kind == proxy.NodePort {
			return f.Addr.Port()
		}
	}
	return 0
}

// Run serves until ctx ends, and then returns nil; what is relayed ends, too.
func (r *Relay) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer r.running.Wait()
	defer stop()
	defer r.closeExcept(nil)
	for ctx.Err() == nil {
		r.reconcile(ctx)
		var retry <-chan time.Time
		if len(r.failures) > 0 {
			retry = time.After(bindRetry)
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-retry:
		}
	}
	return nil
}

// reconcile listens at the ports of all rows that have endpoints. A port without endpoints
// is closed, so that the kernel refuses its clients.
func (r *Relay) reconcile(ctx context.Context) {
	node, wanted := r.node.Load(), map[port]*target{}
	for s := range r.index.All {
		row := s.Row()
		if row == nil {
			continue
		}
		if route := row.Policy(proxy.NodePort, node)[proxy.ThisNode]; len(route.To) > 0 {
			wanted[port{row.Key.Protocol, nodePort(row, node)}] = &target{s, route.Scope}
		}
	}
	r.closeExcept(wanted)
	maps.DeleteFunc(r.failures, func(p port, _ string) bool { return wanted[p] == nil })
	for p, t := range wanted {
		if l := r.open[p]; l != nil {
			l.target.Store(t)
			continue
		}
		l, err := r.listen(ctx, p, t)
		if err != nil {
			r.report(ctx, p, t, err)
			continue
		}
		delete(r.failures, p)
		r.open[p] = l
	}
	r.listening.Store(int64(len(r.open)))
}

func (r *Relay) closeExcept(wanted map[port]*target) {
	for p, l := range r.open {
		if wanted[p] == nil {
			close(l.closed)
			_ = l.Close()
			delete(r.open, p)
		}
	}
	r.listening.Store(int64(len(r.open)))
}

// report counts an error, and reports it unless it is the last one of the port.
func (r *Relay) report(ctx context.Context, p port, t *target, err error) {
	r.unbound.Add(1)
	if err.Error() != r.failures[p] && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "A NodePort is not served at [::1] and is retried", "servicePort", t.Key, "port", p.number)
		r.failed(t.Key, err)
	}
	r.failures[p] = err.Error()
}

func (r *Relay) listen(ctx context.Context, p port, t *target) (l *listener, err error) {
	l = &listener{closed: make(chan struct{})}
	l.target.Store(t)
	at := netip.AddrPortFrom(loopback, p.number)
	err = r.within(func() error {
		if p.protocol == proxy.UDP {
			socket, err := net.ListenUDP("udp6", net.UDPAddrFromAddrPort(at))
			if err == nil {
				l.Closer = socket
				r.running.Go(func() { r.receive(ctx, l, socket) })
			}
			return err
		}
		socket, err := net.ListenTCP("tcp6", net.TCPAddrFromAddrPort(at))
		if err == nil {
			l.Closer = socket
			r.running.Go(func() { r.accept(ctx, l, socket) })
		}
		return err
	})
	return l, err
}

var errNoEndpoint = errors.New("no endpoint")

// dial connects to an endpoint of a target, and returns a function that ends the
// connection. If an endpoint does not accept it, others are tried.
func (r *Relay) dial(ctx context.Context, network string, t *target) (conn net.Conn, to netip.AddrPort, hangUp func(), err error) {
	err = errNoEndpoint
	var tried []netip.AddrPort
	for range maxTries {
		e, ok := t.Choose(loopback, t.scope, tried)
		if !ok {
			break
		}
		err = r.within(func() (err error) {
			conn, err = (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, e.Addr.String())
			return err
		})
		if err == nil {
			return conn, e.Addr, func() { _ = conn.Close(); t.Release(e.Addr) }, nil
		}
		t.Release(e.Addr)
		t.Forget(loopback, e.Addr)
		tried = append(tried, e.Addr)
	}
	return nil, netip.AddrPort{}, nil, err
}

// Metrics returns kube-proxy's metrics of its relay.
func (r *Relay) Metrics() []proxy.Metric {
	metric := func(name, help string, grows bool, of *atomic.Int64) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Grows: grows, Labels: []string{"ip_family"}, Read: func(yield func(float64, ...string)) {
			yield(float64(of.Load()), proxy.IPv6.String())
		}}
	}
	return []proxy.Metric{
		metric("nftables_localhost_nodeport_listeners", "Sockets at [::1] that relay to endpoints of NodePorts", false, &r.listening),
		metric("nftables_localhost_nodeport_listener_creation_failures_total",
			"Failures to open a socket at [::1] for a NodePort", true, &r.unbound),
	}
}

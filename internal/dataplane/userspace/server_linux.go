package userspace

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice/internal/balance"
	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

const (
	descriptors = 8 // that a connection and a session may need: four sockets and two pipes
	drainTick   = 20 * time.Millisecond
	// sessionDrain is what UDP sessions get for another mode to take them.
	sessionDrain = 5 * time.Second
)

// server carries the connections of Services.
type server struct {
	mode.Relay
	families  []proxy.Family
	index     *balance.Index
	workers   []*worker
	listeners []*listener
	socket    func(domain, kind, protocol int) (int, error)
	limit     int64 // of connections, and of sessions
	sayShort  sync.Once
	log       klog.Logger

	open    map[proxy.Protocol]*atomic.Int64
	refused map[string]*atomic.Int64 // clients, by reason
	failed  map[string]*atomic.Int64 // endpoints, by reason
	meters  meters
}

// Why a client was not served, and why an endpoint could not be connected to.
const (
	noService       = "no Service has the address"
	connectionLimit = "limit of connections"
	noDescriptor    = "limit of open files"
	noEndpoint      = "no endpoint connects"
	urgent          = "TCP urgent data"
	refusal         = "refused"
	silence         = "timeout"
	noRoute         = "unreachable"
)

// newServer returns a server with workers that do not run yet.
func newServer(r mode.Relay, families []proxy.Family, workers int) (*server, error) {
	s := &server{
		Relay: r, families: families, index: balance.NewIndex(), socket: unix.Socket,
		open:    map[proxy.Protocol]*atomic.Int64{proxy.TCP: {}, proxy.UDP: {}},
		refused: map[string]*atomic.Int64{noService: {}, connectionLimit: {}, noDescriptor: {}, noEndpoint: {}, urgent: {}},
		failed:  map[string]*atomic.Int64{refusal: {}, silence: {}, noRoute: {}},
		meters:  meters{of: map[metered]*meter{}},
	}
	// Go has raised the limit to what is allowed when the program began.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	if s.limit = int64(files.Cur / descriptors); r.MaxConnections > 0 {
		s.limit = min(s.limit, int64(r.MaxConnections))
	}
	for range workers {
		w, err := s.newWorker()
		if err != nil {
			s.close()
			return nil, err
		}
		s.workers = append(s.workers, w)
	}
	return s, nil
}

// short says, once, that something is short that a connection needs.
func (s *server) short(err error) {
	s.refused[noDescriptor].Add(1)
	s.sayShort.Do(func() {
		s.log.Error(err, "Connections to Services wait: no more can be opened; raise the limit of open files", "limit", s.limit)
	})
}

// cannotReach counts an endpoint that cannot be connected to.
func (s *server) cannotReach(err error) {
	reason := map[error]string{unix.ECONNREFUSED: refusal, unix.ETIMEDOUT: silence}[err]
	if reason == "" {
		reason = noRoute
	}
	s.failed[reason].Add(1)
}

// add gives a listener to a worker, of each protocol by turns: what is next to each other
// shares a port, and its connections.
func (s *server) add(l *listener) {
	turn := 0
	for _, former := range s.listeners {
		if former.Protocol == l.Protocol {
			turn++
		}
	}
	s.listeners = append(s.listeners, l)
	l.number, l.worker = len(s.listeners), s.workers[turn%len(s.workers)]
}

// start has the workers serve their listeners.
func (s *server) start() {
	for _, l := range s.listeners {
		l.worker.do(func() { _ = l.worker.watch(l.fd, l, unix.EPOLLIN) })
	}
}

// drain waits until nothing is open, there is a successor, or it takes too long.
func (s *server) drain(followed <-chan struct{}) {
	tick := time.NewTicker(drainTick)
	defer tick.Stop()
	began := time.Now()
	open := func() bool {
		return s.open[proxy.TCP].Load() > 0 || s.open[proxy.UDP].Load() > 0 && time.Since(began) < sessionDrain
	}
	for late := time.After(s.DrainTimeout); open(); {
		select {
		case <-followed:
			return
		case <-late:
			return
		case <-tick.C:
		}
	}
}

// close gives up all that is open. The workers have stopped.
func (s *server) close() {
	for _, w := range s.workers {
		for _, x := range w.sockets {
			switch x := x.socket.(type) {
			case *connection:
				x.end(w, true)
			case *session:
				x.end(w)
			}
		}
		for _, p := range w.pipes {
			closeAll([]int{p.r, p.w})
		}
		closeAll([]int{w.epoll, w.wake})
	}
	for _, l := range s.listeners {
		_ = unix.Close(l.fd)
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// metrics returns what the server counts.
func (s *server) metrics() []proxy.Metric {
	counted := func(name, help string, by map[string]*atomic.Int64) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Grows: true, Labels: []string{"reason"}, Read: func(yield func(float64, ...string)) {
			for reason, n := range by {
				yield(float64(n.Load()), reason)
			}
		}}
	}
	return []proxy.Metric{
		counted("userspace_refused_clients_total", "Clients that were not served, or sessions that gave way", s.refused),
		counted("userspace_failed_dials_total", "Endpoints that could not be connected to", s.failed),
		{
			Name: "userspace_connections_limit", Help: "TCP connections that may be open, and UDP sessions; beyond, clients are refused",
			Read: func(yield func(float64, ...string)) { yield(float64(s.limit)) },
		},
		{
			Name: "userspace_connections", Help: "TCP connections and UDP sessions that are open", Labels: []string{"protocol"},
			Read: func(yield func(float64, ...string)) {
				for p, n := range s.open {
					yield(float64(n.Load()), p.String())
				}
			},
		},
	}
}

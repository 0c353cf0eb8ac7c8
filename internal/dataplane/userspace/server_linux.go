package userspace

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice/internal/balance"
	"sluice/internal/dataplane/mode"
	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
)

const (
	descriptors = 8 // per connection and session: up to four sockets and two pipes
	drainTick   = 20 * time.Millisecond
	// sessionDrain is how long UDP sessions stay open for another mode to take them over.
	sessionDrain = 5 * time.Second
)

// server relays the connections of Services.
type server struct {
	mode.Relay
	families     []proxy.Family
	index        *balance.Index
	workers      []*worker
	listeners    []*listener
	socket       func(domain, kind, protocol int) (int, error)
	subnets      subnets
	limit        int64 // of connections, and of sessions
	logExhausted sync.Once
	logNoReply   sync.Once
	log          klog.Logger

	open    map[proxy.Protocol]*atomic.Int64
	refused map[string]*atomic.Int64 // clients, by reason
	failed  map[string]*atomic.Int64 // dials of endpoints, by reason
	meters  meters
}

// Why a client was not served, and why an endpoint could not be connected to: label values of
// metrics.
const (
	noService       = "no Service has the address"
	connectionLimit = "limit of connections"
	noDescriptor    = "limit of open files"
	noReply         = "no socket for replies"
	noEndpoint      = "no endpoint connects"
	urgentData      = "TCP urgent data"
	dialRefused     = "refused"
	dialTimeout     = "timeout"
	dialUnreachable = "unreachable"
)

// newServer returns a server whose workers do not run yet.
func newServer(r mode.Relay, families []proxy.Family, workers int) (*server, error) {
	s := &server{
		Relay: r, families: families, index: balance.NewIndex(), socket: unix.Socket,
		open:    map[proxy.Protocol]*atomic.Int64{proxy.TCP: {}, proxy.UDP: {}},
		refused: map[string]*atomic.Int64{noService: {}, connectionLimit: {}, noDescriptor: {}, noReply: {}, noEndpoint: {}, urgentData: {}},
		failed:  map[string]*atomic.Int64{dialRefused: {}, dialTimeout: {}, dialUnreachable: {}},
		meters:  meters{of: map[meterKey]*meter{}},
	}
	// The Go runtime has raised the soft limit to the hard limit at the start of the program.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	if s.limit = int64(files.Cur / descriptors); r.MaxConnections > 0 {
		s.limit = min(s.limit, int64(r.MaxConnections))
	}
	reader, err := link.OpenSubnetReader()
	if err != nil {
		return nil, err
	}
	s.subnets.reader, s.subnets.wanted = reader, make(chan struct{}, 1)
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

// exhausted reports whether an error is a lack of descriptors or memory. If so, it counts the client
// that is not served, and logs the first.
func (s *server) exhausted(err error) bool {
	switch err {
	case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ENOSPC: // the last is for epoll's watches
	default:
		return false
	}
	s.refused[noDescriptor].Add(1)
	s.logExhausted.Do(func() {
		s.log.Error(err, "No descriptors for new connections to Services, they wait until others end or are reset; raise the limit of open files", "limit", s.limit)
	})
	return true
}

// countFailedDial counts an endpoint that could not be connected to.
func (s *server) countFailedDial(err error) {
	reason := map[error]string{unix.ECONNREFUSED: dialRefused, unix.ETIMEDOUT: dialTimeout}[err]
	if reason == "" {
		reason = dialUnreachable
	}
	s.failed[reason].Add(1)
}

// add assigns a listener to a worker, round robin for each protocol: listeners next to each other
// share a port, and its connections should be spread over the workers.
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

// start makes the workers serve their listeners.
func (s *server) start() {
	for _, l := range s.listeners {
		l.worker.do(func() { _ = l.worker.watch(l.fd, l, unix.EPOLLIN) })
	}
}

// drain waits until nothing is open, a successor has taken over, or the drain timeout is over.
func (s *server) drain(takenOver <-chan struct{}) {
	tick := time.NewTicker(drainTick)
	defer tick.Stop()
	for _, w := range s.workers {
		w.do(w.drainSessions)
	}
	began := time.Now()
	open := func() bool {
		return s.open[proxy.TCP].Load() > 0 || s.open[proxy.UDP].Load() > 0 && time.Since(began) < sessionDrain
	}
	for late := time.After(s.DrainTimeout); open(); {
		select {
		case <-takenOver:
			return
		case <-late:
			return
		case <-tick.C:
		}
	}
}

// close resets all connections and closes all descriptors. The workers must have stopped.
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
		_ = w.flows.Close()
	}
	for _, l := range s.listeners {
		_ = unix.Close(l.fd)
	}
	if !s.subnets.followed {
		s.subnets.reader.Close()
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// metrics returns the metrics of the server.
func (s *server) metrics() []proxy.Metric {
	counted := func(name, help string, by map[string]*atomic.Int64) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Grows: true, Labels: []string{"reason"}, Read: func(yield func(float64, ...string)) {
			for reason, n := range by {
				yield(float64(n.Load()), reason)
			}
		}}
	}
	return []proxy.Metric{
		counted("userspace_refused_clients_total", "Clients that were not served, and UDP sessions that were ended to make room for others, by reason", s.refused),
		counted("userspace_failed_dials_total", "Attempts to connect to an endpoint that failed, by reason", s.failed),
		{
			Name: "userspace_connections_limit", Help: "Maximum number of open TCP connections, and of UDP sessions; further clients are refused",
			Read: func(yield func(float64, ...string)) { yield(float64(s.limit)) },
		},
		{
			Name: "userspace_connections", Help: "Open TCP connections and UDP sessions", Labels: []string{"protocol"},
			Read: func(yield func(float64, ...string)) {
				for p, n := range s.open {
					yield(float64(n.Load()), p.String())
				}
			},
		},
	}
}

package userspace

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice/internal/dataplane/mode"
	"sluice/internal/proxy"
)

// server carries the connections of Services.
type server struct {
	mode.Relay
	families  []proxy.Family
	index     *index
	counts    *counts
	workers   []*worker
	listeners []*listener
	socket    func(domain, kind, protocol int) (int, error)
	limit     int64
	sayShort  sync.Once
	log       klog.Logger
}

// descriptors is how many a connection may need: two sockets and two pipes.
const descriptors = 6

// newServer returns a server that has as many workers as Go may use threads.
func newServer(r mode.Relay, families []proxy.Family, threads int) (*server, error) {
	s := &server{Relay: r, families: families, index: newIndex(), counts: newCounts(), socket: unix.Socket}
	// Go has raised the limit to what is allowed when the program began.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	s.limit = int64(files.Cur / descriptors)
	if r.MaxConnections > 0 {
		s.limit = min(s.limit, int64(r.MaxConnections))
	}
	for range threads {
		w, err := s.newWorker()
		if err != nil {
			s.close()
			return nil, err
		}
		s.workers = append(s.workers, w)
	}
	return s, nil
}

func (s *server) full() bool {
	return s.counts.open[proxy.TCP].Load()+s.counts.open[proxy.UDP].Load() >= s.limit
}

// short says, once, that something is short that a connection needs.
func (s *server) short(err error) {
	s.counts.refused(noDescriptor)
	s.sayShort.Do(func() {
		s.log.Error(err, "Connections to Services wait: no more can be opened; raise the limit of open files", "limit", s.limit)
	})
}

// serve gives the workers their listeners.
func (s *server) serve() {
	for i, l := range s.listeners {
		w := s.workers[i%len(s.workers)]
		w.do(func() { _ = w.watch(l.fd, l, unix.EPOLLIN) })
	}
}

// drained returns when no TCP connection is open, or it takes too long. UDP
// sessions get some time for another mode to take them.
func (s *server) drained(done <-chan struct{}) {
	tick := time.NewTicker(drainTick)
	defer tick.Stop()
	began := time.Now()
	open := func() bool {
		return s.counts.open[proxy.TCP].Load() > 0 || s.counts.open[proxy.UDP].Load() > 0 && time.Since(began) < sessionDrain
	}
	for late := time.After(s.DrainTimeout); open(); {
		select {
		case <-done:
			return
		case <-late:
			return
		case <-tick.C:
		}
	}
}

const (
	drainTick    = 20 * time.Millisecond
	sessionDrain = 5 * time.Second
)

// close gives up all that is open. The workers have stopped.
func (s *server) close() {
	for _, w := range s.workers {
		for _, x := range w.sockets {
			switch x := x.(type) {
			case *connection:
				x.reset(w)
			case *session:
				x.end(w)
			}
		}
		for _, p := range w.pipes {
			w.closing = append(w.closing, p.r, p.w)
		}
		for _, fd := range append(w.closing, w.epoll, w.wake) {
			_ = unix.Close(fd)
		}
	}
	for _, l := range s.listeners {
		_ = unix.Close(l.fd)
	}
}

// Why a client was not served.
const (
	noService       = "no Service has the address"
	connectionLimit = "limit of connections"
	noDescriptor    = "limit of open files"
	noEndpoint      = "no endpoint connects"
)

// counts is what metrics tell.
type counts struct {
	open    map[proxy.Protocol]*atomic.Int64
	refuse  map[string]*atomic.Int64 // clients, by reason
	failure map[string]*atomic.Int64 // to connect to an endpoint, by reason
}

func newCounts() *counts {
	counters := func(names ...string) map[string]*atomic.Int64 {
		m := map[string]*atomic.Int64{}
		for _, n := range names {
			m[n] = &atomic.Int64{}
		}
		return m
	}
	return &counts{
		open:    map[proxy.Protocol]*atomic.Int64{proxy.TCP: {}, proxy.UDP: {}},
		refuse:  counters(noService, connectionLimit, noDescriptor, noEndpoint),
		failure: counters("refused", "timeout", "unreachable"),
	}
}

func (c *counts) refused(why string) { c.refuse[why].Add(1) }

func (c *counts) failed(err error) {
	switch err {
	case unix.ECONNREFUSED:
		c.failure["refused"].Add(1)
	case unix.ETIMEDOUT:
		c.failure["timeout"].Add(1)
	default:
		c.failure["unreachable"].Add(1)
	}
}

// metrics returns what the server counts.
func (s *server) metrics() []proxy.Metric {
	by := func(name, help, label string, of map[string]*atomic.Int64) proxy.Metric {
		return proxy.Metric{Name: name, Help: help, Grows: true, Labels: []string{label}, Read: func(yield func(float64, ...string)) {
			for value, n := range of {
				yield(float64(n.Load()), value)
			}
		}}
	}
	return []proxy.Metric{
		{
			Name: "userspace_connections", Help: "TCP connections and UDP sessions that are open", Labels: []string{"protocol"},
			Read: func(yield func(float64, ...string)) {
				for p, n := range s.counts.open {
					yield(float64(n.Load()), p.String())
				}
			},
		},
		{
			Name: "userspace_connections_limit", Help: "Connections and sessions that may be open; beyond, clients are refused",
			Read: func(yield func(float64, ...string)) { yield(float64(s.limit)) },
		},
		by("userspace_refused_clients_total", "Clients that were not served", "reason", s.counts.refuse),
		by("userspace_failed_dials_total", "Endpoints that could not be connected to", "reason", s.counts.failure),
	}
}

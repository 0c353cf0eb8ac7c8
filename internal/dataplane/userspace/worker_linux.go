package userspace

import (
	"container/list"
	"math"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// eventsAtOnce and roundsAtOnce bound what is done before others have their turn.
	eventsAtOnce = 256
	roundsAtOnce = 16
	// acceptPause is how long no connection is accepted when there is no descriptor for it.
	acceptPause = 100 * time.Millisecond
)

// worker serves connections on one thread: everything it does is non-blocking,
// so nobody waits for a slow client or endpoint. But for do, its methods are
// called by its own goroutine.
type worker struct {
	*server
	epoll, wake int
	sockets     map[int32]socket
	busy        []*connection // that have more to do than one turn
	closing     []int         // once all events at hand are seen: their numbers are not to be used again before
	dialing     list.List     // of *connection, the oldest first
	sessions    map[flow]*session
	idle        list.List // of *session, the one first that was silent longest
	replies     map[netip.AddrPort]*reply
	pipes       []*pipe   // empty ones
	buffer      []byte    // for a datagram
	pausedUntil time.Time // zero: connections are accepted

	mu   sync.Mutex
	todo []func() // by others
}

// socket is told when one of its descriptors is ready.
type socket interface {
	ready(w *worker, fd int, events uint32)
}

func (s *server) newWorker() (*worker, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	w := &worker{
		server: s, epoll: epoll, sockets: map[int32]socket{}, sessions: map[flow]*session{}, replies: map[netip.AddrPort]*reply{},
		buffer: make([]byte, math.MaxUint16),
	}
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		_ = unix.Close(epoll)
		return nil, err
	}
	return w, w.watch(w.wake, nil, unix.EPOLLIN)
}

// do has the worker's goroutine do something.
func (w *worker) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.todo = append(w.todo, f)
	_, _ = unix.Write(w.wake, []byte{7: 1})
}

// watch has a socket told what happens to a descriptor.
func (w *worker) watch(fd int, s socket, events uint32) error {
	w.sockets[int32(fd)] = s
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Fd: int32(fd), Events: events})
}

// close closes a descriptor that was watched.
func (w *worker) close(fd int) {
	delete(w.sockets, int32(fd))
	w.closing = append(w.closing, fd)
}

// run works until it is stopped.
func (w *worker) run() {
	events := make([]unix.EpollEvent, eventsAtOnce)
	for stopped := false; !stopped; {
		n, _ := unix.EpollWait(w.epoll, events, w.patience()) // no error but EINTR is possible
		for _, e := range events[:max(n, 0)] {
			if s := w.sockets[e.Fd]; s != nil {
				s.ready(w, int(e.Fd), e.Events)
			}
		}
		busy := w.busy
		w.busy = nil
		for _, c := range busy {
			c.busy = false
			c.relay(w)
		}
		w.expire(time.Now())
		for _, fd := range w.closing {
			_ = unix.Close(fd)
		}
		w.closing = w.closing[:0]
		stopped = w.ordered()
	}
}

// ordered does what others want, and reports whether that is to stop.
func (w *worker) ordered() bool {
	w.mu.Lock()
	todo := w.todo
	w.todo = nil
	w.mu.Unlock()
	if len(todo) > 0 {
		_, _ = unix.Read(w.wake, make([]byte, 8))
	}
	for _, f := range todo {
		if f == nil {
			return true
		}
		f()
	}
	return false
}

// patience returns for how many milliseconds there is nothing to do.
func (w *worker) patience() int {
	if len(w.busy) > 0 {
		return 0
	}
	next := time.Time{}
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if e := w.dialing.Front(); e != nil {
		sooner(e.Value.(*connection).began.Add(w.DialTimeout))
	}
	if e := w.idle.Front(); e != nil {
		sooner(e.Value.(*session).used.Add(w.UDPTimeout))
	}
	if !w.pausedUntil.IsZero() {
		sooner(w.pausedUntil)
	}
	if next.IsZero() {
		return -1
	}
	return int(max(0, time.Until(next))/time.Millisecond) + 1
}

// expire does what is due.
func (w *worker) expire(now time.Time) {
	for e := w.dialing.Front(); e != nil; e = w.dialing.Front() {
		c := e.Value.(*connection)
		if now.Sub(c.began) < w.DialTimeout {
			break
		}
		c.failed(w, unix.ETIMEDOUT)
	}
	for e := w.idle.Front(); e != nil; e = w.idle.Front() {
		s := e.Value.(*session)
		if now.Sub(s.used) < w.UDPTimeout {
			break
		}
		s.end(w)
	}
	if !w.pausedUntil.IsZero() && !now.Before(w.pausedUntil) {
		w.accepting(true)
	}
}

// refuses says why there can be no new connection to a service, if so. Sessions
// that are silent give way.
func (w *worker) refuses(to *service) string {
	if to == nil {
		return noService
	}
	if w.full() && w.idle.Len() > 0 {
		w.counts.refused(connectionLimit)
		w.idle.Front().Value.(*session).end(w)
	}
	if w.full() {
		return connectionLimit
	}
	return ""
}

// accepting has new connections accepted, or not for a while.
func (w *worker) accepting(on bool) {
	w.pausedUntil = time.Time{}
	events := uint32(unix.EPOLLIN)
	if !on {
		w.pausedUntil, events = time.Now().Add(acceptPause), 0
	}
	for fd, s := range w.sockets {
		if l, ok := s.(*listener); ok {
			_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_MOD, l.fd, &unix.EpollEvent{Fd: fd, Events: events})
		}
	}
}

// pipe holds what was read and not yet written.
type pipe struct{ r, w int }

// pipeSize is how much a pipe shall hold. It is what a slow peer can make us keep, each way.
const pipeSize = 256 << 10

// takePipe returns an empty pipe.
func (w *worker) takePipe() (*pipe, error) {
	if n := len(w.pipes); n > 0 {
		p := w.pipes[n-1]
		w.pipes = w.pipes[:n-1]
		return p, nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize) // without it, 64 KiB
	return &pipe{fds[0], fds[1]}, nil
}

// sparePipes is how many empty pipes a worker keeps.
const sparePipes = 64

// givePipe takes a pipe back, which is not used again unless it is empty.
func (w *worker) givePipe(p *pipe, empty bool) {
	if empty && len(w.pipes) < sparePipes {
		w.pipes = append(w.pipes, p)
		return
	}
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
}

package userspace

import (
	"container/list"
	"math"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/balance"
	"sluice/internal/proxy"
)

const (
	eventsAtOnce = 256                    // before others have their turn
	roundsAtOnce = 16                     // of one socket
	acceptPause  = 100 * time.Millisecond // when there is no descriptor for a connection
	pipeSize     = 256 << 10              // what a slow peer can make us keep, each way
	sparePipes   = 64                     // empty ones of a worker
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
	todo []func() // by others; nil: stop
}

// socket is told when one of its descriptors is ready.
type socket interface {
	ready(w *worker, fd int, events uint32)
}

func (s *server) newWorker() (w *worker, err error) {
	w = &worker{
		server: s, sockets: map[int32]socket{}, sessions: map[flow]*session{}, replies: map[netip.AddrPort]*reply{},
		buffer: make([]byte, math.MaxUint16),
	}
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		_ = unix.Close(w.epoll)
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

// finishClosing frees the numbers of what was closed. A program that is just being
// started has all descriptors, too, for a moment, so that their events would go on and
// be taken for those of what has the number next.
func (w *worker) finishClosing() {
	for _, fd := range w.closing {
		_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	}
	closeAll(w.closing)
	w.closing = w.closing[:0]
}

// run works until it is stopped.
func (w *worker) run() {
	events := make([]unix.EpollEvent, eventsAtOnce)
	for stopped := false; !stopped; {
		n, _ := unix.EpollWait(w.epoll, events, w.patience()) // no error but EINTR is possible
		w.dispatch(events[:max(n, 0)])
		busy := w.busy
		w.busy = nil
		for _, c := range busy {
			c.busy = false
			c.relay(w)
		}
		w.expire(time.Now())
		w.finishClosing()
		stopped = w.ordered()
	}
}

// dispatch tells sockets what happened.
func (w *worker) dispatch(events []unix.EpollEvent) {
	for _, e := range events {
		if s := w.sockets[e.Fd]; s != nil {
			s.ready(w, int(e.Fd), e.Events)
		}
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

// patience returns for how many milliseconds there is nothing to do; -1: for ever.
func (w *worker) patience() int {
	if len(w.busy) > 0 {
		return 0
	}
	wait := time.Duration(math.MaxInt64)
	if e := w.dialing.Front(); e != nil {
		wait = time.Until(e.Value.(*connection).began.Add(w.DialTimeout))
	}
	if e := w.idle.Front(); e != nil {
		wait = min(wait, time.Until(e.Value.(*session).used.Add(w.UDPTimeout)))
	}
	if !w.pausedUntil.IsZero() {
		wait = min(wait, time.Until(w.pausedUntil))
	}
	if wait == math.MaxInt64 {
		return -1
	}
	return int(max(0, wait)/time.Millisecond) + 1
}

// expire does what is due.
func (w *worker) expire(now time.Time) {
	for e := w.dialing.Front(); e != nil && now.Sub(e.Value.(*connection).began) >= w.DialTimeout; e = w.dialing.Front() {
		e.Value.(*connection).dialed(w, unix.ETIMEDOUT)
	}
	for e := w.idle.Front(); e != nil && now.Sub(e.Value.(*session).used) >= w.UDPTimeout; e = w.idle.Front() {
		e.Value.(*session).end(w)
	}
	if !w.pausedUntil.IsZero() && !now.Before(w.pausedUntil) {
		w.accepting(true)
	}
}

// roomForSession reports whether there may be one more session. One that is
// silent gives way.
func (w *worker) roomForSession() bool {
	if w.open[proxy.UDP].Load() >= w.limit && w.idle.Len() > 0 {
		w.refused[connectionLimit].Add(1)
		w.idle.Front().Value.(*session).end(w)
	}
	return w.open[proxy.UDP].Load() < w.limit
}

// refuse counts a client that is not served.
func (w *worker) refuse(to *balance.Service) {
	if to == nil {
		w.refused[noService].Add(1)
	} else {
		w.refused[connectionLimit].Add(1)
	}
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

// givePipe takes a pipe back, which is not used again unless it is empty.
func (w *worker) givePipe(p *pipe, empty bool) {
	if empty && len(w.pipes) < sparePipes {
		w.pipes = append(w.pipes, p)
		return
	}
	closeAll([]int{p.r, p.w})
}

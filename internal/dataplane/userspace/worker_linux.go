package userspace

import (
	"container/list"
	"math"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

const (
	maxEvents    = 256                    // handled per call of epoll_wait
	maxRounds    = 16                     // of one socket before others get a turn
	maxDatagrams = 256                    // likewise, of a listener: its buffer holds those of all clients, and only a few hundred
	maxCopies    = 2                      // pipes full, likewise: who sends little waits for all that copy much
	maxFlush     = 128                    // turns of the other direction, when one has failed
	acceptPause  = 100 * time.Millisecond // when no descriptor is available for a connection
	pipeSize     = 256 << 10              // how much a slow peer can make us buffer, in each direction
	sparePipes   = 64                     // empty pipes that a worker keeps
)

// worker serves connections on one thread. All its system calls are non-blocking, so no connection
// waits for a slow client or endpoint. Except for do, its methods must be called by its own
// goroutine.
type worker struct {
	*server
	flows       *ct.Conn
	epoll, wake int
	sockets     map[int32]watched // by descriptor
	watches     int32             // number of watches so far
	busy        []*connection     // have more to copy than one turn allows
	dialing     list.List         // of *connection, oldest first
	sessions    map[flow]*session
	idle        list.List // of *session, the longest silent first
	replies     map[netip.AddrPort]*reply
	pipes       []*pipe   // empty ones, for reuse
	buffer      []byte    // for a datagram
	pausedUntil time.Time // zero while connections are accepted
	draining    bool      // another mode may serve new clients

	mu   sync.Mutex
	todo []func() // for the worker's goroutine; nil means stop
}

// watched is a socket and the number of its watch. The number of a closed descriptor is soon reused
// while events of the former socket are pending, or still arrive: a child process has copies of all
// descriptors until it executes its program.
type watched struct {
	socket
	number int32
}

// socket receives the events of its descriptors.
type socket interface {
	ready(w *worker, fd int, events uint32)
}

func (s *server) newWorker() (w *worker, err error) {
	w = &worker{
		server: s, sockets: map[int32]watched{}, sessions: map[flow]*session{}, replies: map[netip.AddrPort]*reply{},
		buffer: make([]byte, math.MaxUint16),
	}
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		_ = unix.Close(w.epoll)
		return nil, err
	}
	if w.flows, err = ct.Open(); err != nil {
		closeAll([]int{w.epoll, w.wake})
		return nil, err
	}
	return w, w.watch(w.wake, nil, unix.EPOLLIN)
}

// do makes the worker's goroutine call f; nil stops the worker. Any goroutine may call it.
func (w *worker) do(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.todo = append(w.todo, f)
	_, _ = unix.Write(w.wake, []byte{7: 1})
}

// watch registers a descriptor with epoll; its events go to s.
func (w *worker) watch(fd int, s socket, events uint32) error {
	w.watches++
	w.sockets[int32(fd)] = watched{s, w.watches}
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Fd: int32(fd), Pad: w.watches, Events: events})
}

// close closes a descriptor that is watched.
func (w *worker) close(fd int) {
	delete(w.sockets, int32(fd))
	_ = unix.Close(fd)
}

// run serves until it is stopped, on a thread of its own: if Go moves the goroutine to another
// thread after each wait, fewer connections are made per second.
func (w *worker) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	events := make([]unix.EpollEvent, maxEvents)
	for stopped := false; !stopped; {
		n, _ := unix.EpollWait(w.epoll, events, w.pollTimeout()) // EINTR is the only possible error
		w.dispatch(events[:max(n, 0)])
		busy := w.busy
		w.busy = nil
		for _, c := range busy {
			c.busy = false
			c.relay(w)
		}
		w.expire(time.Now())
		stopped = w.runTodo()
	}
}

// dispatch passes events to their sockets, except those of an earlier watch of a descriptor.
func (w *worker) dispatch(events []unix.EpollEvent) {
	for _, e := range events {
		if s := w.sockets[e.Fd]; s.socket != nil && s.number == e.Pad {
			s.ready(w, int(e.Fd), e.Events)
		}
	}
}

// runTodo calls the functions passed to do, and reports whether the worker is to stop.
func (w *worker) runTodo() bool {
	w.mu.Lock()
	todo := w.todo
	w.todo = nil
	if len(todo) > 0 { // before do adds another, whose wake-up this would take
		_, _ = unix.Read(w.wake, make([]byte, 8))
	}
	w.mu.Unlock()
	for _, f := range todo {
		if f == nil {
			return true
		}
		f()
	}
	return false
}

// pollTimeout returns how many milliseconds epoll_wait may block; -1 means no limit.
func (w *worker) pollTimeout() int {
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

// expire handles all timeouts that are over.
func (w *worker) expire(now time.Time) {
	for e := w.dialing.Front(); e != nil && now.Sub(e.Value.(*connection).began) >= w.DialTimeout; e = w.dialing.Front() {
		e.Value.(*connection).dialed(w, unix.ETIMEDOUT)
	}
	for e := w.idle.Front(); e != nil && now.Sub(e.Value.(*session).used) >= w.UDPTimeout; e = w.idle.Front() {
		e.Value.(*session).end(w)
	}
	if !w.pausedUntil.IsZero() && !now.Before(w.pausedUntil) {
		w.setAccepting(true)
	}
}

// makeRoom makes room for one more session. A worker that has its share of the limit ends its
// longest silent session; it cannot end those of other workers.
func (w *worker) makeRoom() {
	if share := max(1, w.limit/int64(len(w.workers))); int64(w.idle.Len()) >= share {
		w.refused[connectionLimit].Add(1)
		w.idle.Front().Value.(*session).end(w)
	}
}

// setAccepting resumes accepting connections, or pauses it for acceptPause. Datagrams are received
// all the same: those of existing sessions need no descriptor.
func (w *worker) setAccepting(on bool) {
	w.pausedUntil = time.Time{}
	events := uint32(unix.EPOLLIN)
	if !on {
		w.pausedUntil, events = time.Now().Add(acceptPause), 0
	}
	for fd, s := range w.sockets {
		if l, ok := s.socket.(*listener); ok && l.Protocol == proxy.TCP {
			_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_MOD, l.fd, &unix.EpollEvent{Fd: fd, Pad: s.number, Events: events})
		}
	}
}

// pipe holds bytes that were read from one socket and not yet written to the other.
type pipe struct {
	r, w  int
	slots int // each holds a page, or any part of one
}

// newPipe returns a pipe of two descriptors, as large as the kernel allows: a user with many pipes
// gets small ones.
func newPipe(r, w int) *pipe {
	_, _ = unix.FcntlInt(uintptr(w), unix.F_SETPIPE_SZ, pipeSize)
	size, err := unix.FcntlInt(uintptr(w), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		size = 0 // unknown
	}
	return &pipe{r, w, size / os.Getpagesize()}
}

// large reports whether the pipe has the size that was asked for.
func (p *pipe) large() bool { return p.slots*os.Getpagesize() >= pipeSize }

// getPipe returns an empty pipe.
func (w *worker) getPipe() (*pipe, error) {
	if n := len(w.pipes); n > 0 {
		p := w.pipes[n-1]
		w.pipes = w.pipes[:n-1]
		return p, nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	return newPipe(fds[0], fds[1]), nil
}

// putPipe takes back a pipe. It is reused only if it is empty and large.
func (w *worker) putPipe(p *pipe, empty bool) {
	if empty && p.large() && len(w.pipes) < sparePipes {
		w.pipes = append(w.pipes, p)
		return
	}
	closeAll([]int{p.r, p.w})
}

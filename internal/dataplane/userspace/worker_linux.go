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
	sockets     map[int32]watched // by descriptor
	watches     int32             // there were so far
	busy        []*connection     // that have more to do than one turn
	dialing     list.List         // of *connection, the oldest first
	sessions    map[flow]*session
	idle        list.List // of *session, the one first that was silent longest
	replies     map[netip.AddrPort]*reply
	pipes       []*pipe   // empty ones
	buffer      []byte    // for a datagram
	pausedUntil time.Time // zero: connections are accepted

	mu   sync.Mutex
	todo []func() // by others; nil: stop
}

// watched is a socket, and by which of all watches. A number that was closed is soon
// that of another descriptor, while events of the first are at hand, or still come: a
// program that is just being started has all descriptors, too, for a moment.
type watched struct {
	socket
	watch int32
}

// socket is told when one of its descriptors is ready.
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
	w.watches++
	w.sockets[int32(fd)] = watched{s, w.watches}
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Fd: int32(fd), Pad: w.watches, Events: events})
}

// close closes a descriptor that was watched.
func (w *worker) close(fd int) {
	delete(w.sockets, int32(fd))
	_ = unix.Close(fd)
}

// run works until it is stopped, on a thread of its own: where Go moves the goroutine
// whenever it waited, fewer connections are made in a second.
func (w *worker) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
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
		stopped = w.ordered()
	}
}

// dispatch tells sockets what happened.
func (w *worker) dispatch(events []unix.EpollEvent) {
	for _, e := range events {
		if s := w.sockets[e.Fd]; s.socket != nil && s.watch == e.Pad {
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

// makeRoom makes room for one more session. A worker that has its share of them has
// the one give way that was silent longest: those of others it cannot end.
func (w *worker) makeRoom() {
	if share := max(1, w.limit/int64(len(w.workers))); int64(w.idle.Len()) >= share {
		w.refused[connectionLimit].Add(1)
		w.idle.Front().Value.(*session).end(w)
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
		if l, ok := s.socket.(*listener); ok {
			_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_MOD, l.fd, &unix.EpollEvent{Fd: fd, Pad: s.watch, Events: events})
		}
	}
}

// pipe holds what was read and not yet written.
type pipe struct {
	r, w  int
	slots int // of something to hold, however little
}

// newPipe makes descriptors a pipe, as large as the kernel allows: a user who has many
// gets small ones.
func newPipe(r, w int) *pipe {
	_, _ = unix.FcntlInt(uintptr(w), unix.F_SETPIPE_SZ, pipeSize)
	size, err := unix.FcntlInt(uintptr(w), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		size = 0 // so that nothing is concluded from it
	}
	return &pipe{r, w, size / os.Getpagesize()}
}

// large reports whether there is as much room as was asked for.
func (p *pipe) large() bool { return p.slots*os.Getpagesize() >= pipeSize }

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
	return newPipe(fds[0], fds[1]), nil
}

// givePipe takes a pipe back, which is not used again unless it is empty and large.
func (w *worker) givePipe(p *pipe, empty bool) {
	if empty && p.large() && len(w.pipes) < sparePipes {
		w.pipes = append(w.pipes, p)
		return
	}
	closeAll([]int{p.r, p.w})
}

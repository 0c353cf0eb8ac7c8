package userspace

import (
	"container/list"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// listener is where rules lead connections of one kind to.
type listener struct {
	Protocol   proxy.Protocol
	Family     proxy.Family
	Scope      proxy.Scope // of the endpoints that they take
	Masquerade bool
	Port       uint16
	fd         int
}

// ready takes what has come.
func (l *listener) ready(w *worker, _ int, _ uint32) {
	for range roundsAtOnce {
		err := l.accept(w)
		switch err {
		case nil, unix.ECONNABORTED, unix.EINTR:
			continue
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			w.short(err)
			w.accepting(false)
		}
		return
	}
}

func (l *listener) accept(w *worker) error {
	if l.Protocol == proxy.UDP {
		return l.receive(w)
	}
	fd, peer, err := unix.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		return unix.Close(fd)
	}
	c := &connection{
		service: w.index.find(proxy.TCP, addrPort(own)), client: addrPort(peer), scope: l.Scope, masquerade: l.Masquerade,
		fds: [2]int{fd, -1},
	}
	if why := w.refuses(c.service); why != "" {
		w.counts.refused(why)
		resetOnClose(fd)
		return unix.Close(fd)
	}
	w.counts.open[proxy.TCP].Add(1)
	c.watch(w, 0)
	c.dial(w)
	return nil
}

// The ends of a connection.
const (
	toClient = iota
	toEndpoint
)

// connection is a client's connection and the one to its endpoint.
type connection struct {
	service    *service
	client     netip.AddrPort
	endpoint   proxy.Endpoint
	scope      proxy.Scope
	masquerade bool
	tried      []netip.AddrPort // that failed
	fds        [2]int           // -1: none
	from       [2]stream        // from the client, from the endpoint
	dialing    *list.Element    // nil: there is an endpoint
	began      time.Time        // to dial
	busy       bool             // its turn comes again soon
}

// stream is what goes one way.
type stream struct {
	pipe  *pipe
	held  int  // bytes in the pipe
	ended bool // there will be nothing more to read
	shut  bool // and the other side knows
}

func (c *connection) watch(w *worker, end int) {
	const all = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
	if w.watch(c.fds[end], c, all) != nil {
		c.reset(w)
	}
}

// ready goes on when the endpoint has been reached or not, or one of both has
// something to read or room to write.
func (c *connection) ready(w *worker, fd int, events uint32) {
	switch {
	case c.dialing == nil:
		c.relay(w)
	case fd == c.fds[toEndpoint]:
		c.dialed(w)
	case events&unix.EPOLLERR != 0: // The client has gone meanwhile.
		c.reset(w)
	}
}

// dial begins to connect to an endpoint that was not tried.
func (c *connection) dial(w *worker) {
	for c.fds[toClient] >= 0 && c.fds[toEndpoint] < 0 {
		e, ok := c.service.choose(c.client.Addr(), c.scope, c.tried)
		if !ok || len(c.tried) > w.Retries {
			if ok {
				c.service.release(e.Addr)
			}
			w.counts.refused(noEndpoint)
			c.reset(w)
			return
		}
		c.endpoint, c.began = e, time.Now()
		fd, err := w.connect(proxy.TCP, c.client, e, c.masquerade)
		if err != nil {
			c.giveUp(w, err)
			continue
		}
		c.fds[toEndpoint] = fd
		c.dialing = w.dialing.PushBack(c)
		c.watch(w, toEndpoint)
	}
}

// dialed looks what became of it.
func (c *connection) dialed(w *worker) {
	code, err := unix.GetsockoptInt(c.fds[toEndpoint], unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		c.failed(w, err)
	case code != 0:
		c.failed(w, unix.Errno(code))
	default:
		w.dialing.Remove(c.dialing)
		c.dialing, c.tried = nil, nil
		c.relay(w)
	}
}

// failed tries another endpoint.
func (c *connection) failed(w *worker, err error) {
	w.dialing.Remove(c.dialing)
	c.dialing = nil
	c.drop(w, toEndpoint, false)
	c.giveUp(w, err)
	c.dial(w)
}

// giveUp gives an endpoint up.
func (c *connection) giveUp(w *worker, err error) {
	w.counts.failed(err)
	c.service.release(c.endpoint.Addr)
	c.tried = append(c.tried, c.endpoint.Addr)
}

// relay moves what there is, both ways.
func (c *connection) relay(w *worker) {
	if c.fds[toClient] < 0 || c.fds[toEndpoint] < 0 {
		return
	}
	more := false
	for i := range c.from {
		again, err := c.from[i].move(w, c.fds[i], c.fds[1-i])
		if err != nil {
			c.reset(w)
			return
		}
		more = more || again
	}
	switch {
	case c.from[0].shut && c.from[1].shut:
		c.end(w, false)
	case more && !c.busy:
		c.busy = true
		w.busy = append(w.busy, c)
	}
}

// move moves what can be moved one way without waiting, in the kernel. It
// reports true if there is more, when others have had their turn. The pipe is
// filled only when it is empty, so a read that would block has nothing to read.
func (s *stream) move(w *worker, from, to int) (more bool, err error) {
	for range roundsAtOnce {
		if s.held == 0 && !s.ended {
			if err := s.read(w, from); err == unix.EAGAIN {
				return false, nil
			} else if err != nil {
				return false, err
			}
		}
		if s.held == 0 {
			s.release(w)
			if !s.shut {
				s.shut = true
				return false, unix.Shutdown(to, unix.SHUT_WR)
			}
			return false, nil
		}
		n, err := unix.Splice(s.pipe.r, nil, to, nil, s.held, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if err == unix.EAGAIN {
			return false, nil
		} else if err != nil {
			return false, err
		}
		s.held -= int(n)
	}
	return true, nil
}

// read fills the pipe.
func (s *stream) read(w *worker, from int) (err error) {
	if s.pipe == nil {
		if s.pipe, err = w.takePipe(); err != nil {
			w.counts.refused(noDescriptor)
			return err
		}
	}
	n, err := unix.Splice(from, nil, s.pipe.w, nil, pipeSize, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	if err != nil {
		s.release(w)
		return err
	}
	s.held, s.ended = int(n), n == 0
	return nil
}

// release gives the pipe back.
func (s *stream) release(w *worker) {
	if s.pipe != nil {
		w.givePipe(s.pipe, s.held == 0)
		s.pipe = nil
	}
}

// reset tells both sides that the connection was cut off.
func (c *connection) reset(w *worker) { c.end(w, true) }

func (c *connection) end(w *worker, cutOff bool) {
	if c.fds[toClient] < 0 {
		return
	}
	if c.dialing != nil {
		w.dialing.Remove(c.dialing)
		c.dialing = nil
	}
	if c.fds[toEndpoint] >= 0 {
		c.service.release(c.endpoint.Addr)
		c.drop(w, toEndpoint, cutOff)
	}
	c.drop(w, toClient, cutOff)
	for i := range c.from {
		c.from[i].release(w)
	}
	w.counts.open[proxy.TCP].Add(-1)
}

// drop closes one of both.
func (c *connection) drop(w *worker, end int, cutOff bool) {
	if cutOff {
		resetOnClose(c.fds[end])
	}
	w.close(c.fds[end])
	c.fds[end] = -1
}

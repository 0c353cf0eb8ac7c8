package userspace

import (
	"container/list"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/balance"
	"sluice/internal/proxy"
)

// listener is a socket that rules redirect connections of one kind to. Its exported fields are sent
// to a successor.
type listener struct {
	Protocol   proxy.Protocol
	Scope      proxy.Scope // of the endpoints to choose from
	Masquerade int         // 1 if the endpoint sees the node's address, 0 if the client's
	Port       uint16
	family     proxy.Family
	fd         int
	number     int     // in server.listeners, from 1
	worker     *worker // serves it
}

// sameKind reports whether rules redirect the same connections to another listener.
func (l *listener) sameKind(o *listener) bool {
	return l.Protocol == o.Protocol && l.Scope == o.Scope && l.Masquerade == o.Masquerade && l.family == o.family
}

// ready accepts connections or receives datagrams.
func (l *listener) ready(w *worker, _ int, _ uint32) {
	take, rounds := l.accept, maxRounds
	if l.Protocol == proxy.UDP {
		take, rounds = l.receive, maxDatagrams
	}
	for range rounds {
		switch err := take(w); err {
		case nil, unix.ECONNABORTED, unix.EINTR:
			continue
		default:
			if w.exhausted(err) {
				w.setAccepting(false)
			}
			return
		}
	}
}

func (l *listener) accept(w *worker) error {
	fd, peer, err := syscall.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	c := &connection{fds: [2]int{fd, -1}, connectionState: connectionState{Client: addrPort(peer), Scope: l.Scope, Masquerade: l.Masquerade}}
	if to, err := syscall.Getsockname(fd); err == nil {
		c.service = w.index.Find(proxy.TCP, addrPort(to))
	}
	open := w.open[proxy.TCP].Add(1)
	c.watch(w, client)
	switch {
	case c.service == nil:
		w.refused[noService].Add(1)
		c.end(w, true)
	case open > w.limit:
		w.refused[connectionLimit].Add(1)
		c.end(w, true)
	default:
		c.Key = c.service.Key
		c.dial(w)
	}
	return nil
}

// The two ends of a connection, which also number the streams from there; as such they equal the
// values of proxy.Direction.
const client, endpoint = 0, 1

// connectionState is what a successor needs to know of a connection. It is sent as JSON.
type connectionState struct {
	Key        proxy.PortKey
	Client     netip.AddrPort
	Endpoint   proxy.Endpoint
	Scope      proxy.Scope
	Masquerade int
	Held       [2]int  // bytes that were read and not yet written
	Ended      [2]bool // end of file was read
	Shut       [2]bool // and passed on to the other side
}

// connection is a client's connection and the one to its endpoint.
type connection struct {
	connectionState
	service  *balance.Service
	meter    *meter           // nil until an endpoint is connected
	tried    []netip.AddrPort // endpoints that could not be connected to
	fds      [2]int           // -1 if closed or not open yet
	pipes    [2]*pipe         // of the bytes held; nil if none was needed
	readable [2]bool          // there may be something to read
	hungUp   [2]bool          // nothing follows what can be read now but end of file or an error
	failed   [2]bool          // it was reset, or could not be connected
	dialing  *list.Element    // nil unless it is being connected to an endpoint
	began    time.Time        // when the dial began
	busy     bool             // it is in worker.busy
}

func (c *connection) watch(w *worker, end int) {
	if w.watch(c.fds[end], c, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLET) != nil {
		c.end(w, true)
	}
}

// ready handles the result of a dial, or copies what can be read or written now.
func (c *connection) ready(w *worker, fd int, events uint32) {
	from := client
	if fd == c.fds[endpoint] {
		from = endpoint
	}
	c.hungUp[from] = c.hungUp[from] || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	c.failed[from] = events&unix.EPOLLERR != 0
	c.readable[from] = c.readable[from] || c.hungUp[from] || events&unix.EPOLLIN != 0
	switch {
	case events&unix.EPOLLPRI != 0: // Urgent data cannot be spliced: everything after it would wait for ever.
		w.refused[urgentData].Add(1)
		c.end(w, true)
	case c.dialing == nil:
		c.relay(w)
	case from == endpoint && events&unix.EPOLLERR == 0:
		c.dialed(w, nil)
	case from == endpoint:
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		c.dialed(w, err)
	case events&unix.EPOLLERR != 0: // The client has gone.
		c.end(w, true)
	}
}

// dial starts to connect to an endpoint that was not tried yet. Without one it resets the
// connection.
func (c *connection) dial(w *worker) {
	for c.fds[client] >= 0 && c.fds[endpoint] < 0 {
		e, ok := c.service.Choose(c.Client.Addr(), c.Scope, c.tried)
		if !ok || len(c.tried) > w.Retries {
			if ok {
				c.service.Release(e.Addr)
			}
			w.refused[noEndpoint].Add(1)
			c.end(w, true)
			return
		}
		c.Endpoint, c.began = e, time.Now()
		fd, err := w.connect(proxy.TCP, c.Client, e, c.Masquerade)
		if w.exhausted(err) { // no endpoint is to blame
			c.service.Release(e.Addr)
			c.end(w, true)
			return
		}
		if err != nil {
			c.dialFailed(w, err)
			continue
		}
		c.fds[endpoint], c.dialing = fd, w.dialing.PushBack(c)
		c.watch(w, endpoint)
	}
}

// dialed starts to relay, or tries another endpoint after an error.
func (c *connection) dialed(w *worker, err error) {
	w.dialing.Remove(c.dialing)
	c.dialing = nil
	if err == nil {
		c.tried, c.meter = nil, w.countConnection(c.Key, c.Endpoint.Addr)
		c.relay(w)
		return
	}
	c.closeEnd(w, endpoint, false)
	c.dialFailed(w, err)
	c.dial(w)
}

// dialFailed counts the failure and excludes the endpoint from further attempts.
func (c *connection) dialFailed(w *worker, err error) {
	w.countFailedDial(err)
	w.countFailure(c.Key, c.Endpoint.Addr)
	c.service.Release(c.Endpoint.Addr)
	c.tried = append(c.tried, c.Endpoint.Addr)
}

// relay copies what is available, in both directions.
func (c *connection) relay(w *worker) {
	if c.fds[client] < 0 || c.fds[endpoint] < 0 {
		return
	}
	more := false
	for from := range c.fds {
		again, err := c.move(w, from)
		if err != nil {
			c.flush(w, 1-from)
			c.end(w, true)
			return
		}
		more = more || again
	}
	switch {
	case c.Shut[client] && c.Shut[endpoint]:
		c.end(w, false)
	case !more && c.failed[client]: // its bytes may wait for ever for an endpoint that does not read
		c.end(w, true)
	case more && !c.busy:
		c.busy = true
		w.busy = append(w.busy, c)
	}
}

// flush copies what has arrived from one side after the other direction has failed; it may be its
// last reply. The number of rounds is bounded, because a side that did not reset the connection may
// send without end while others wait.
func (c *connection) flush(w *worker, from int) {
	c.readable[from] = true // its event may not have been received yet
	for range maxFlush {
		if again, err := c.move(w, from); err != nil || !again {
			return
		}
	}
}

const spliceFlags = unix.SPLICE_F_NONBLOCK | unix.SPLICE_F_MOVE

// move copies one direction as far as possible without blocking, by splice. It reports true if
// there is more to copy after others have had their turn. The pipe is filled only when it is empty,
// so if reading would block, that is because there is nothing to read, not because the pipe is
// full.
func (c *connection) move(w *worker, from int) (more bool, err error) {
	for range maxCopies {
		if c.Held[from] == 0 && !c.Ended[from] {
			err := error(unix.EAGAIN)
			if c.readable[from] {
				err = c.fill(w, from)
			}
			if err != nil {
				c.readable[from] = false
				c.release(w, from)
				return false, unlessBlocked(err)
			}
		}
		if c.Held[from] == 0 {
			c.release(w, from)
			if c.Shut[from] {
				return false, nil
			}
			if c.Shut[from] = true; c.Shut[1-from] {
				return false, nil // relay closes both
			}
			return false, unix.Shutdown(c.fds[1-from], unix.SHUT_WR)
		}
		n, err := unix.Splice(c.pipes[from].r, nil, c.fds[1-from], nil, c.Held[from], spliceFlags)
		if err != nil {
			return false, unlessBlocked(err)
		}
		c.Held[from] -= int(n)
		c.meter.add(proxy.Direction(from), int(n), 0)
	}
	return true, nil
}

func unlessBlocked(err error) error {
	if err == unix.EAGAIN {
		return nil
	}
	return err
}

// fill reads into an empty pipe.
func (c *connection) fill(w *worker, from int) (err error) {
	if c.pipes[from] == nil {
		if c.pipes[from], err = w.getPipe(); err != nil {
			w.exhausted(err)
			return err
		}
	}
	n, err := unix.Splice(c.fds[from], nil, c.pipes[from].w, nil, pipeSize, spliceFlags)
	if err == nil {
		c.Held[from], c.Ended[from] = int(n), n == 0
		// Each slot holds at least a byte. If fewer bytes were read than there are slots, the
		// socket is empty, and epoll reports when more arrives.
		c.readable[from] = int(n) >= c.pipes[from].slots || c.hungUp[from]
	}
	return err
}

// release returns a pipe to the worker.
func (c *connection) release(w *worker, from int) {
	if c.pipes[from] != nil {
		w.putPipe(c.pipes[from], c.Held[from] == 0)
		c.pipes[from] = nil
	}
}

// end closes the connection; with reset, both sides see a reset.
func (c *connection) end(w *worker, reset bool) {
	if c.fds[client] < 0 {
		return
	}
	if c.dialing != nil {
		w.dialing.Remove(c.dialing)
		c.dialing = nil
	}
	if c.meter != nil {
		c.meter.end(c.fds[client])
	}
	if c.fds[endpoint] >= 0 {
		c.service.Release(c.Endpoint.Addr)
		c.closeEnd(w, endpoint, reset)
	}
	c.closeEnd(w, client, reset)
	c.release(w, client)
	c.release(w, endpoint)
	w.open[proxy.TCP].Add(-1)
}

// closeEnd closes one side.
func (c *connection) closeEnd(w *worker, end int, reset bool) {
	if reset && !c.failed[end] {
		_ = unix.SetsockoptLinger(c.fds[end], unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	w.close(c.fds[end])
	c.fds[end] = -1
}

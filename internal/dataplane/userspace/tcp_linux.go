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

// listener is where rules lead connections of one kind to.
type listener struct {
	Protocol   proxy.Protocol
	Scope      proxy.Scope // of the endpoints that they take
	Masquerade int         // 1: the endpoint sees the node
	Port       uint16
	family     proxy.Family
	fd         int
	number     int     // from 1
	worker     *worker // that serves it
}

// like reports whether rules lead the same connections to another one.
func (l *listener) like(o *listener) bool {
	return l.Protocol == o.Protocol && l.Scope == o.Scope && l.Masquerade == o.Masquerade && l.family == o.family
}

// ready takes what has come.
func (l *listener) ready(w *worker, _ int, _ uint32) {
	take := l.accept
	if l.Protocol == proxy.UDP {
		take = l.receive
	}
	for range roundsAtOnce {
		switch err := take(w); err {
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
	fd, peer, err := syscall.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	c := &connection{fds: [2]int{fd, -1}, relayed: relayed{Client: addrPort(peer), Scope: l.Scope, Masquerade: l.Masquerade}}
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

// The ends of a connection, and the streams from there, numbered as directions.
const client, endpoint = 0, 1

// relayed is what a successor must know of a connection.
type relayed struct {
	Key        proxy.PortKey
	Client     netip.AddrPort
	Endpoint   proxy.Endpoint
	Scope      proxy.Scope
	Masquerade int
	Held       [2]int  // bytes that were read and not yet written
	Ended      [2]bool // there will be nothing more to read
	Shut       [2]bool // and the other side knows
}

// connection is a client's connection and the one to its endpoint.
type connection struct {
	relayed
	service *balance.Service
	meter   *meter           // nil: it has not reached an endpoint
	tried   []netip.AddrPort // that failed
	fds     [2]int           // -1: none
	pipes   [2]*pipe         // of what is held
	some    [2]bool          // there may be something to read
	last    [2]bool          // after which comes the end, or an error
	broken  [2]bool          // it was reset already, or never connected
	dialing *list.Element    // nil: there is an endpoint
	began   time.Time        // to dial
	busy    bool             // its turn comes again soon
}

func (c *connection) watch(w *worker, end int) {
	if w.watch(c.fds[end], c, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLPRI|unix.EPOLLRDHUP|unix.EPOLLET) != nil {
		c.end(w, true)
	}
}

// ready goes on when the endpoint has been reached or not, or one of both has
// something to read or room to write.
func (c *connection) ready(w *worker, fd int, events uint32) {
	from := client
	if fd == c.fds[endpoint] {
		from = endpoint
	}
	c.last[from] = c.last[from] || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	c.broken[from] = events&unix.EPOLLERR != 0
	c.some[from] = c.some[from] || c.last[from] || events&unix.EPOLLIN != 0
	switch {
	case events&unix.EPOLLPRI != 0: // Urgent data, which cannot be spliced: all after it would wait without end.
		w.refused[urgent].Add(1)
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
	case events&unix.EPOLLERR != 0: // The client has gone meanwhile.
		c.end(w, true)
	}
}

// dial begins to connect to an endpoint that was not tried.
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
		if err != nil {
			c.giveUp(w, err)
			continue
		}
		c.fds[endpoint], c.dialing = fd, w.dialing.PushBack(c)
		c.watch(w, endpoint)
	}
}

// dialed goes on with the endpoint, or with another one after an error.
func (c *connection) dialed(w *worker, err error) {
	w.dialing.Remove(c.dialing)
	c.dialing = nil
	if err == nil {
		c.tried, c.meter = nil, w.metered(c.Key, c.Endpoint.Addr)
		c.relay(w)
		return
	}
	c.drop(w, endpoint, false)
	c.giveUp(w, err)
	c.dial(w)
}

func (c *connection) giveUp(w *worker, err error) {
	w.cannotReach(err)
	c.service.Release(c.Endpoint.Addr)
	c.tried = append(c.tried, c.Endpoint.Addr)
}

// relay moves what there is, both ways.
func (c *connection) relay(w *worker) {
	if c.fds[client] < 0 || c.fds[endpoint] < 0 {
		return
	}
	more := false
	for from := range c.fds {
		again, err := c.move(w, from)
		if err != nil {
			c.giveRest(w, 1-from)
			c.end(w, true)
			return
		}
		more = more || again
	}
	if c.Shut[client] && c.Shut[endpoint] {
		c.end(w, false)
	} else if more && !c.busy {
		c.busy = true
		w.busy = append(w.busy, c)
	}
}

// giveRest moves what has come from one side before the other way failed, which may be its
// last answer. There is a bound, as a side that did not reset the connection may send
// without end, and others wait.
func (c *connection) giveRest(w *worker, from int) {
	c.some[from] = true // its event may not have been seen
	for range roundsAtOnce {
		if again, err := c.move(w, from); err != nil || !again {
			return
		}
	}
}

const spliceFlags = unix.SPLICE_F_NONBLOCK | unix.SPLICE_F_MOVE

// move moves what can be moved one way without waiting, in the kernel. It
// reports true if there is more, when others have had their turn. The pipe is
// filled only when it is empty, so a read that would block has nothing to read.
func (c *connection) move(w *worker, from int) (more bool, err error) {
	for range roundsAtOnce {
		if c.Held[from] == 0 && !c.Ended[from] {
			err := error(unix.EAGAIN)
			if c.some[from] {
				err = c.fill(w, from)
			}
			if err != nil {
				c.some[from] = false
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

// fill fills an empty pipe.
func (c *connection) fill(w *worker, from int) (err error) {
	if c.pipes[from] == nil {
		if c.pipes[from], err = w.takePipe(); err != nil {
			w.refused[noDescriptor].Add(1)
			return err
		}
	}
	n, err := unix.Splice(c.fds[from], nil, c.pipes[from].w, nil, pipeSize, spliceFlags)
	if err == nil {
		c.Held[from], c.Ended[from] = int(n), n == 0
		// Less than a byte for each slot has emptied the socket, and there is an event when more comes.
		c.some[from] = int(n) >= c.pipes[from].slots || c.last[from]
	}
	return err
}

// release gives a pipe back.
func (c *connection) release(w *worker, from int) {
	if c.pipes[from] != nil {
		w.givePipe(c.pipes[from], c.Held[from] == 0)
		c.pipes[from] = nil
	}
}

// end ends the connection; cutOff: both sides see a reset.
func (c *connection) end(w *worker, cutOff bool) {
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
		c.drop(w, endpoint, cutOff)
	}
	c.drop(w, client, cutOff)
	c.release(w, client)
	c.release(w, endpoint)
	w.open[proxy.TCP].Add(-1)
}

// drop closes one of both.
func (c *connection) drop(w *worker, end int, cutOff bool) {
	if cutOff && !c.broken[end] {
		_ = unix.SetsockoptLinger(c.fds[end], unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	w.close(c.fds[end])
	c.fds[end] = -1
}

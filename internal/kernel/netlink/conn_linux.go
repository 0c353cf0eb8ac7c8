package netlink

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// bufferBytes is the size that is requested for both socket buffers, so that a batch and
	// all its errors fit, and so that a dump of a table that grows meanwhile does not overrun
	// the socket.
	bufferBytes = 64 << 20
	// datagramBytes is more than the kernel puts into one datagram, be it a part of a
	// dump or an error, which includes the message that caused it.
	datagramBytes = 128 << 10
	// answerSeconds is how long to wait for the next datagram of an answer.
	answerSeconds = 10
)

// Attempts is how often callers usually try a listing that changes interrupt.
const Attempts = 20

// ErrInterrupted means that what was listed changed during the listing, so that the
// answer may be incomplete or inconsistent.
var ErrInterrupted = errors.New("listing was interrupted by a change")

// Conn is a connection to one of the kernel's netlink protocols, in the network
// namespace that it was opened in. Callers build a request and then call Ask or Send.
// Only one goroutine at a time may use it.
type Conn struct {
	Builder
	Port uint32 // the port ID, which events about changes by this connection carry

	socket Socket
	recv   []byte
}

// Socket carries requests to the kernel and its answers back.
type Socket interface {
	Send(b []byte) error
	Receive(b []byte, flags int) (int, error)
	Close() error
}

// Open opens a connection in the calling thread's network namespace. It stays in that
// namespace, whichever thread uses it later.
func Open(protocol int) (*Conn, error) {
	fd, err := dial(protocol)
	if err != nil {
		return nil, err
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the port of a netlink socket: %w", err), unix.Close(fd))
	}
	c := New(kernel(fd))
	c.Port = sa.(*unix.SockaddrNetlink).Pid
	return c, nil
}

// New returns a connection over a socket.
func New(s Socket) *Conn { return &Conn{socket: s} }

func (c *Conn) Close() error { return c.socket.Close() }

func dial(protocol int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return 0, fmt.Errorf("open netlink socket: %w", err)
	}
	for force, plain := range map[int]int{unix.SO_SNDBUFFORCE: unix.SO_SNDBUF, unix.SO_RCVBUFFORCE: unix.SO_RCVBUF} {
		// The forced size needs CAP_NET_ADMIN in the initial user namespace. Without it, the
		// size is limited by net.core.wmem_max and rmem_max.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bufferBytes) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, bufferBytes)
		}
	}
	if protocol == unix.NETLINK_ROUTE { // since Linux 4.20 listings are limited to what is asked for
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	}
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerSeconds}),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
	)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("prepare netlink socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// kernel is the Socket of a netlink file descriptor.
type kernel int

func (k kernel) Send(b []byte) error {
	return unix.Sendto(int(k), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (k kernel) Receive(b []byte, flags int) (int, error) {
	n, _, err := unix.Recvfrom(int(k), b, flags)
	return n, err
}

func (k kernel) Close() error { return unix.Close(int(k)) }

// Request discards what was built and begins a new request. The names are its
// attributes 1, 2 and so on: those of a table and of an object in it.
func (c *Conn) Request(kind, flags uint16, header [4]byte, names ...string) {
	c.Reset()
	c.Begin(kind, flags, header)
	for i, name := range names {
		c.Text(uint16(i+1), name)
	}
}

// Send sends what was built, and does not wait for an answer.
func (c *Conn) Send() error {
	if c.Err != nil {
		return c.Err
	}
	return c.socket.Send(c.Bytes())
}

// Ask sends the request and calls each for every message of the answer. It always reads
// the whole answer, because the rest would be read as the answer to the next request.
// The error is [ErrInterrupted] if the answer may be incomplete.
func (c *Conn) Ask(each func(Message)) error {
	if err := c.Send(); err != nil {
		return err
	}
	interrupted := false
	for {
		datagram, err := c.receive(0)
		switch {
		case err == unix.ENOBUFS:
			interrupted = true
			continue
		case err != nil:
			return err
		}
		for m := range Messages(datagram) {
			if m.Seq != c.seq {
				continue // the rest of the answer to an earlier request that failed, for example by a timeout
			}
			interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.Kind != unix.NLMSG_DONE && m.Kind != unix.NLMSG_ERROR:
				each(m)
			case m.Err() == nil && interrupted:
				return ErrInterrupted
			default:
				return m.Err()
			}
		}
	}
}

// Answers returns the errors for the messages that were sent, by sequence number.
// Messages without an error were accepted. The kernel has queued all errors when Send
// returns, so Answers does not wait.
func (c *Conn) Answers() (map[uint32]error, error) {
	errs := map[uint32]error{}
	for {
		datagram, err := c.receive(unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN:
			return errs, nil
		case err != nil:
			return nil, err
		}
		for m := range Messages(datagram) {
			if err := m.Err(); m.Kind == unix.NLMSG_ERROR && err != nil {
				errs[m.Seq] = err
			}
		}
	}
}

func (c *Conn) receive(flags int) ([]byte, error) {
	if c.recv == nil {
		c.recv = make([]byte, datagramBytes)
	}
	for {
		n, err := c.socket.Receive(c.recv, flags)
		if err != unix.EINTR {
			return c.recv[:max(n, 0)], err
		}
	}
}

// Once sends a request over a new connection, and repeats it while changes interrupt the
// answer. It returns the attributes of each message of the answer.
func Once(ctx context.Context, protocol int, request func(*Conn)) (answers []Attrs, err error) {
	c, err := Open(protocol)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	err = RetryInterrupted(ctx, Attempts, func() error {
		answers = nil
		request(c)
		return c.Ask(func(m Message) { answers = append(answers, slices.Clone(m.Attrs())) })
	})
	return answers, err
}

// RetryInterrupted runs a listing until no change interrupts it, at most the given number of
// times. It returns [ErrInterrupted] if the last attempt was interrupted, too.
func RetryInterrupted(ctx context.Context, attempts int, list func() error) (err error) {
	for range attempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err = list(); !errors.Is(err, ErrInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}

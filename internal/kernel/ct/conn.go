package ct

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// dumpTries is how often a dump is begun before it may be incomplete.
const dumpTries = 5

// Conn is connection tracking of the network namespace it was opened in.
type Conn struct {
	socket transport
	seq    uint32
	recv   []byte
	plain  bool // the kernel refused to filter by protocol
	parsed int  // messages of dumps that were decoded
}

var _ Interface = (*Conn)(nil)

// Open opens a connection to the connection tracking of the calling thread's
// network namespace, wherever it is used from later.
func Open() (*Conn, error) {
	s, err := dial()
	if err != nil {
		return nil, err
	}
	return newConn(s), nil
}

func newConn(s transport) *Conn { return &Conn{socket: s, recv: make([]byte, datagramBytes)} }

// Close releases the socket.
func (c *Conn) Close() error { return c.socket.close() }

// Dump asks the kernel for the flows, again if it was interrupted.
func (c *Conn) Dump(ctx context.Context, f Filter, keep func(*Flow) bool) ([]Flow, error) {
	var flows []Flow
	var err error
	for range dumpTries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		flows, err = c.dump(f, !c.plain, keep)
		if refusesFilter(err) && !c.plain {
			flows, err = c.dump(f, false, keep)
			c.plain = err == nil
		}
		if !errors.Is(err, ErrIncomplete) {
			break
		}
	}
	if err != nil {
		return flows, fmt.Errorf("dump %v flows: %w", f, err)
	}
	return flows, nil
}

// refusesFilter reports whether an error may be about the filter.
func refusesFilter(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// dump asks once. It reads to the end whatever happens, since what it left
// there would be the answer to the next question.
func (c *Conn) dump(f Filter, byProtocol bool, keep func(*Flow) bool) ([]Flow, error) {
	c.seq++
	m := newMessage(msgGet, unix.NLM_F_DUMP, c.seq, f.IPv6)
	if byProtocol {
		m.protocol(f.Protocol)
	}
	if err := c.send(m); err != nil {
		return nil, err
	}
	var flows []Flow
	var flow Flow
	var incomplete error
	done := false
	for !done {
		err := c.receive(func(r received) error {
			if r.flags&unix.NLM_F_DUMP_INTR != 0 {
				incomplete = fmt.Errorf("%w: the table changed its shape", ErrIncomplete)
			}
			switch r.kind {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				return status(r.body)
			case unix.NFNL_SUBSYS_CTNETLINK<<8 | msgNew:
			default:
				return nil
			}
			c.parsed++
			if err := decode(r.body, &flow); err != nil {
				incomplete = fmt.Errorf("%w: %w", ErrIncomplete, err)
			} else if f.Matches(&flow) && keep(&flow) {
				flows = append(flows, flow)
			}
			return nil
		})
		switch {
		case errors.Is(err, unix.ENOBUFS):
			incomplete = fmt.Errorf("%w: %w", ErrIncomplete, err)
		case err != nil:
			return nil, err
		}
	}
	return flows, incomplete
}

// Delete names the flow to the kernel by its first packet and its ID.
func (c *Conn) Delete(ctx context.Context, f *Flow) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.seq++
	m := newMessage(msgDelete, unix.NLM_F_ACK, c.seq, f.Orig.Dst.Addr().Is6())
	m.flow(f)
	err := c.send(m)
	for answered := false; err == nil && !answered; {
		err = c.receive(func(r received) error {
			answered = answered || r.kind == unix.NLMSG_ERROR
			return status(r.body)
		})
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return ErrNotFound
	case err != nil:
		return fmt.Errorf("delete flow %v: %w", f, err)
	default:
		return nil
	}
}

func (c *Conn) send(m *message) error {
	if err := c.socket.send(m.bytes()); err != nil {
		return fmt.Errorf("ask connection tracking: %w", err)
	}
	return nil
}

// receive reads one datagram and gives the messages that answer the last
// request to use, until that fails.
func (c *Conn) receive(use func(received) error) error {
	n, err := c.socket.receive(c.recv)
	if err != nil {
		return fmt.Errorf("read from connection tracking: %w", err)
	}
	for r := range messages(c.recv[:n]) {
		if r.seq != c.seq {
			continue // of a request that was given up
		}
		if err := use(r); err != nil {
			return err
		}
	}
	return nil
}

// status reads how a request ended: both ends of an answer begin with a
// negative error number.
func status(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
		return syscall.Errno(-code)
	}
	return nil
}

package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Events is a socket on which the kernel announces changes, while Listen runs.
type Events struct {
	file *os.File
}

// OpenEvents opens it in the calling thread's network namespace. What a
// connection changes is filtered out in the kernel, so that a large write of ours
// does not drown a small one of theirs.
func OpenEvents(protocol int, except uint32) (*Events, error) {
	fd, err := dial(protocol)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(ignore(fd, except), unix.SetNonblock(fd, true)); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Events{os.NewFile(uintptr(fd), "netlink events")}, nil
}

func (e *Events) Close() error { return e.file.Close() }

// Listen joins a group, calls joined, and then calls each with the datagrams that
// arrive until ctx ends, with nil where some were lost.
func (e *Events) Listen(ctx context.Context, group int, joined func(), each func(datagram []byte)) error {
	if err := e.membership(unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
		return err
	}
	defer func() { _ = e.membership(unix.NETLINK_DROP_MEMBERSHIP, group) }()
	joined()
	stop := context.AfterFunc(ctx, func() { _ = e.file.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, datagramBytes)
	for {
		n, err := e.file.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			each(nil)
		case err != nil:
			return err
		default:
			each(buf[:n])
		}
	}
}

// membership joins or leaves a group.
func (e *Events) membership(option, group int) error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, group) })
	return errors.Join(err, failed)
}

// ignore makes a socket deaf to messages caused by a netlink port. The filter
// reads the port from the message's header, where it is in host order, while the
// filter's loads are in network order.
func ignore(fd int, port uint32) error {
	const portOffset = 12
	loaded := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: portOffset},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: loaded, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	return attach(fd, filter)
}

// attach has the kernel leave out what a filter does.
func attach(fd int, filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
}

// What is taken from a queue at once: so many datagrams, which are announcements
// of one thing each and short.
const (
	takenAtOnce = 32
	takenBytes  = datagramBytes / takenAtOnce
)

// Queue is a socket where the kernel puts what it announces, until it is taken. As
// nobody waits for it, what arrives wakes nobody, which would cost more than all
// else.
type Queue struct {
	fd       int
	buf      []byte
	headers  [takenAtOnce]mmsghdr
	segments [takenAtOnce]unix.Iovec
}

// mmsghdr is the kernel's struct of that name.
type mmsghdr struct {
	unix.Msghdr
	received uint32
}

// OpenQueue begins to collect the messages of a group, in the calling thread's
// network namespace. The kernel leaves out those that a filter does.
func OpenQueue(protocol, group int, filter []unix.SockFilter) (*Queue, error) {
	fd, err := dial(protocol)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		attach(fd, filter),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("join netlink group %d: %w", group, err), unix.Close(fd))
	}
	q := &Queue{fd: fd, buf: make([]byte, datagramBytes)}
	for i := range q.headers {
		q.segments[i].Base = &q.buf[i*takenBytes]
		q.segments[i].SetLen(takenBytes)
		q.headers[i].Iov = &q.segments[i]
		q.headers[i].SetIovlen(1)
	}
	return q, nil
}

// Take calls each with the datagrams that have arrived, and with nil where some
// were lost.
func (q *Queue) Take(each func(datagram []byte)) error {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(q.fd), uintptr(unsafe.Pointer(&q.headers[0])), takenAtOnce, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
		case unix.EAGAIN:
			return nil
		case unix.ENOBUFS:
			each(nil)
			continue
		case unix.EINTR:
			continue
		default:
			return errno
		}
		for i := range n {
			if h := &q.headers[i]; h.Flags&unix.MSG_TRUNC != 0 {
				each(nil)
			} else {
				each(q.buf[i*takenBytes:][:h.received])
			}
		}
	}
}

func (q *Queue) Close() error { return unix.Close(q.fd) }

package netlink

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog),
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

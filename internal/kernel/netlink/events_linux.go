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

// Events is a socket on which the kernel announces changes while Listen runs.
type Events struct {
	file *os.File
}

// OpenEvents opens a socket in the calling thread's network namespace. Except is the port
// of a connection whose own changes the kernel filters out, so that events about a large
// write of ours do not displace one about a change by another process.
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

// Listen joins a multicast group and calls joined. Until ctx ends, it then calls each for
// every datagram, and with nil if datagrams were lost.
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

// membership joins or leaves a multicast group.
func (e *Events) membership(option, group int) error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, group) })
	return errors.Join(err, failed)
}

// ignore attaches a filter that drops messages about changes by a netlink port. The port
// in the header of a message is in host byte order, but the filter loads it in network
// byte order.
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

// attach attaches a filter to a socket.
func attach(fd int, filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
}

// How many datagrams one system call reads from a Queue, and how long each may be. They
// are short, because each announces a single event.
const (
	queueBatch    = 32
	queueMaxBytes = datagramBytes / queueBatch
)

// Queue is a socket on which the kernel queues events until Take reads them. No goroutine
// waits for events, because waking it for each would cost more than everything else.
type Queue struct {
	fd       int
	buf      []byte
	headers  [queueBatch]mmsghdr
	segments [queueBatch]unix.Iovec
}

// mmsghdr is the kernel's struct mmsghdr.
type mmsghdr struct {
	unix.Msghdr
	received uint32
}

// OpenQueue joins a multicast group in the calling thread's network namespace and begins
// to queue its messages. The kernel queues only those that the filter accepts.
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
		q.segments[i].Base = &q.buf[i*queueMaxBytes]
		q.segments[i].SetLen(queueMaxBytes)
		q.headers[i].Iov = &q.segments[i]
		q.headers[i].SetIovlen(1)
	}
	return q, nil
}

// Take calls each for every queued datagram, and with nil if some were lost. It does not
// wait. A datagram is only valid during the call.
func (q *Queue) Take(each func(datagram []byte)) error {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(q.fd), uintptr(unsafe.Pointer(&q.headers[0])), queueBatch, unix.MSG_DONTWAIT, 0, 0)
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
				each(q.buf[i*queueMaxBytes:][:h.received])
			}
		}
	}
}

func (q *Queue) Close() error { return unix.Close(q.fd) }

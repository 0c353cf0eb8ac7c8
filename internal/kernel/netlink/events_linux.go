package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Events is a socket on which the kernel announces changes: while Listen runs, or
// from Join on.
type Events struct {
	file *os.File
	buf  []byte // of Take
}

// OpenEvents opens it in the calling thread's network namespace. A filter says
// which messages the kernel puts there at all.
func OpenEvents(protocol int, filter []unix.SockFilter) (*Events, error) {
	fd, err := dial(protocol)
	if err != nil {
		return nil, err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
	if err := errors.Join(err, unix.SetNonblock(fd, true)); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Events{file: os.NewFile(uintptr(fd), "netlink events")}, nil
}

// Close releases the socket.
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

// Join joins a group for as long as the socket is open. What arrives stays there
// until it is taken.
func (e *Events) Join(group int) error { return e.membership(unix.NETLINK_ADD_MEMBERSHIP, group) }

// Wait returns when there is something to take, or ctx has ended.
func (e *Events) Wait(ctx context.Context) error {
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = e.file.SetReadDeadline(time.Now()) })
	defer stop()
	err = raw.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Take calls each with the datagrams that have arrived, with nil where some were
// lost, and waits for none. It may be called while another goroutine waits.
func (e *Events) Take(each func(datagram []byte)) error {
	if e.buf == nil {
		e.buf = make([]byte, datagramBytes)
	}
	raw, err := e.file.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var n int
		var failed error
		err := raw.Control(func(fd uintptr) { n, _, failed = unix.Recvfrom(int(fd), e.buf, unix.MSG_DONTWAIT) })
		switch failed {
		case nil:
			if err != nil {
				return err
			}
			each(e.buf[:n])
		case unix.EAGAIN:
			return nil
		case unix.ENOBUFS:
			each(nil)
		case unix.EINTR:
		default:
			return failed
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

// Except is a filter that leaves out what a connection changes, by its port, so
// that a large write of ours does not drown a small one of theirs. It reads the
// port from the message's header, where it is in host order, while the filter's
// loads are in network order.
func Except(port uint32) []unix.SockFilter {
	const portOffset = 12
	loaded := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: portOffset},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: loaded, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
}

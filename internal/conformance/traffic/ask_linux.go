package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// Ask opens one new TCP connection over IPv4, or sends one datagram from a new
// socket, and waits for the answer. It runs in the namespace of its thread (see
// [Namespace.Do]).
func Ask(p proxy.Protocol, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	fd, err := Connect(p, to, timeout)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	var buf [maxAnswer]byte
	if p == proxy.UDP {
		if _, err := unix.Write(fd, buf[:1]); err != nil {
			return Answer{}, err
		}
	}
	n, err := unix.Read(fd, buf[:])
	for err == unix.EINTR {
		n, err = unix.Read(fd, buf[:])
	}
	if err != nil {
		return Answer{}, err
	}
	return parseAnswer(buf[:n])
}

// Connect returns a connected socket that waits no longer than timeout for
// anything and leaves nothing behind when it is closed. It runs in the namespace
// of its thread.
func Connect(p proxy.Protocol, to netip.AddrPort, timeout time.Duration) (int, error) {
	kind := unix.SOCK_STREAM
	if p == proxy.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make a socket: %w", err)
	}
	wait := unix.NsecToTimeval(timeout.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
	)
	if err == nil {
		err = unix.Connect(fd, sockaddr(to))
	}
	// The Go runtime interrupts threads by signals; the kernel goes on connecting
	// meanwhile, and waits again when it is asked again.
	for err == unix.EINTR {
		if err = unix.Connect(fd, sockaddr(to)); err == unix.EISCONN {
			err = nil
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

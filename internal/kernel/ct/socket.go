package ct

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// receiveBytes is asked for, so that a table that is dumped while it grows
	// does not overrun the socket.
	receiveBytes = 8 << 20
	// datagramBytes is more than the kernel puts into one datagram of a dump.
	datagramBytes = 128 << 10
	// answerSeconds is how long the kernel may be silent in the middle of an answer.
	answerSeconds = 10
)

// transport carries requests to the kernel and its answers back.
type transport interface {
	send(b []byte) error
	receive(b []byte) (int, error)
	close() error
}

// socket is a netlink socket. It stays in the network namespace it was made in.
type socket int

func dial() (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	// Without CAP_NET_ADMIN over the host the limits of the system hold.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBytes)
	}
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerSeconds}),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
	)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("prepare netfilter netlink socket: %w", err), unix.Close(fd))
	}
	return socket(fd), nil
}

func (s socket) send(b []byte) error {
	return unix.Sendto(int(s), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (s socket) receive(b []byte) (int, error) {
	for {
		n, _, err := unix.Recvfrom(int(s), b, 0)
		if err != unix.EINTR {
			return n, err
		}
	}
}

func (s socket) close() error { return unix.Close(int(s)) }

package ipvs

import (
	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// OpenObserved is Open with a function that is called before each datagram is received.
func OpenObserved(before func()) (*Conn, error) {
	c, err := Open()
	if err != nil {
		return nil, err
	}
	if err := c.Close(); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	c.conn = netlink.New(&observed{fd, before})
	return c, err
}

type observed struct {
	fd     int
	before func()
}

func (s *observed) Send(b []byte) error {
	return unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (s *observed) Receive(b []byte, flags int) (int, error) {
	s.before()
	n, _, err := unix.Recvfrom(s.fd, b, flags)
	return n, err
}

func (s *observed) Close() error { return unix.Close(s.fd) }

package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
)

// Client makes connections from inside a host.
type Client struct {
	host *lab.Host
}

// NewClient prepares a host for many connections: nearly all ports may be their
// source.
func NewClient(h *lab.Host) (*Client, error) {
	err := h.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("1024 65535"), 0)
	})
	if err != nil {
		return nil, fmt.Errorf("widen the ports of %s: %w", h.Name, err)
	}
	return &Client{host: h}, nil
}

// errNoAnswer is a connection that ended before an answer came.
var errNoAnswer = errors.New("closed without an answer")

// ask makes one new connection, or sends one datagram from a new socket, and
// returns which endpoint answered. It runs inside the host.
func ask(p proxy.Protocol, to netip.AddrPort, patience time.Duration) (netip.Addr, error) {
	kind := unix.SOCK_STREAM
	if p == proxy.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := open(kind, patience)
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := connect(fd, to); err != nil {
		return netip.Addr{}, err
	}
	var own [4]byte
	if p == proxy.UDP {
		if _, err := unix.Write(fd, own[:1]); err != nil {
			return netip.Addr{}, err
		}
	}
	n, err := unix.Read(fd, own[:])
	for err == unix.EINTR {
		n, err = unix.Read(fd, own[:])
	}
	if err != nil {
		return netip.Addr{}, err
	}
	if n < len(own) {
		return netip.Addr{}, errNoAnswer
	}
	return netip.AddrFrom4(own), nil
}

// open makes a socket that waits no longer than patience for anything and
// leaves nothing behind when it is closed.
func open(kind int, patience time.Duration) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("make a socket: %w", err)
	}
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
	)
	if kind == unix.SOCK_STREAM {
		err = errors.Join(err, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("prepare a socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// connect connects a socket. The Go runtime interrupts threads by signals; the
// kernel goes on connecting meanwhile, and waits again when it is asked again.
func connect(fd int, to netip.AddrPort) error {
	addr := sockaddr(to)
	err := unix.Connect(fd, addr)
	for err == unix.EINTR {
		if err = unix.Connect(fd, addr); err == unix.EISCONN {
			return nil
		}
	}
	return err
}

func sockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

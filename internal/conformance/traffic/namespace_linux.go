package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// Namespace is a network namespace. Its methods may be called concurrently.
type Namespace struct {
	Name   string
	Handle netns.NsHandle
	Ports  *Ports // source ports for Probe
	Cgroup string // directory of its sockets' cgroup, see Cgroups; empty means that of the calling thread
}

// New creates a network namespace and leaves no thread in it. The kernel removes it when it is
// closed and nothing in it runs or is open.
func New(name string, p *Ports) (*Namespace, error) {
	n := &Namespace{Name: name, Ports: p}
	err := onLockedThread("", func() (err error) {
		n.Handle, err = netns.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w", name, err)
	}
	return n, nil
}

// onLockedThread runs f on a thread that f may move to another network namespace. The thread is in
// the cgroup, if one is given. Afterwards the thread returns to its former namespace and cgroup.
func onLockedThread(cgroup string, f func() error) error {
	const threads = "cgroup.threads"
	runtime.LockOSThread()
	was, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("read own network namespace: %w", err)
	}
	defer was.Close()
	home := ""
	if cgroup != "" {
		if home, err = ownCgroup(); err == nil {
			err = join(cgroup, threads)
		}
	}
	if err == nil {
		err = f()
	}
	back := netns.Set(was)
	if home != "" {
		back = errors.Join(back, join(home, threads))
	}
	if back != nil {
		// The thread stays locked, so it ends with its goroutine and no other goroutine runs in the
		// wrong namespace or cgroup.
		return errors.Join(err, fmt.Errorf("return to own network namespace and cgroup: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// Do runs f on a thread in the namespace and its cgroup. Sockets that f opens and processes that it
// starts stay there; goroutines that it starts do not.
func (n *Namespace) Do(f func() error) error {
	return onLockedThread(n.Cgroup, func() error {
		if err := netns.Set(n.Handle); err != nil {
			return fmt.Errorf("enter %s: %w", n.Name, err)
		}
		return f()
	})
}

func (n *Namespace) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }
func (n *Namespace) Close() error              { return n.Handle.Close() }

// Dial opens a TCP or UDP connection. With the zero Addr the kernel chooses the source.
func (n *Namespace) Dial(ctx context.Context, p proxy.Protocol, src netip.Addr, dst netip.AddrPort) (c net.Conn, err error) {
	var d net.Dialer
	switch local := netip.AddrPortFrom(src, 0); {
	case !src.IsValid():
	case p == proxy.TCP:
		d.LocalAddr = net.TCPAddrFromAddrPort(local)
	default:
		d.LocalAddr = net.UDPAddrFromAddrPort(local)
	}
	err = n.Do(func() error {
		c, err = d.DialContext(ctx, strings.ToLower(p.String()), dst.String())
		return err
	})
	return c, err
}

// Ports allocates source ports round-robin, so that no connection meets the conntrack entry of an
// earlier one.
type Ports struct{ last atomic.Uint32 }

// These are the ports that Linux gives to clients by default, from 32768 to 60999. Mode userspace
// chooses higher ones at their addresses.
const firstPort, portCount = 32768, 28232

func (p *Ports) next() uint16 { return uint16(firstPort + p.last.Add(1)%portCount) }

// Restart starts again at the first port if half of them have been used, and reports whether it
// did. The caller must then remove the conntrack entries of earlier connections.
func (p *Ports) Restart() bool {
	if p.last.Load() < portCount/2 {
		return false
	}
	p.last.Store(0)
	return true
}

// Ask opens one TCP connection, or sends one datagram from a new socket, and waits for the answer.
// It runs in the namespace of its thread (see [Namespace.Do]).
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
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, err = unix.Read(fd, buf[:])
	}
	if err != nil {
		return Answer{}, err
	}
	return parseAnswer(buf[:n])
}

// Connect returns a connected socket whose operations block no longer than timeout and that leaves
// no state behind when it is closed. It runs in the namespace of its thread.
func Connect(p proxy.Protocol, to netip.AddrPort, timeout time.Duration) (int, error) {
	fd, err := newSocket(p, to.Addr(), 0, 0)
	if err != nil {
		return -1, err
	}
	wait := unix.NsecToTimeval(timeout.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
	)
	// The Go runtime interrupts threads by signals. The kernel continues to connect meanwhile;
	// another call waits for the result.
	for wait := err == nil; wait; wait = err == unix.EINTR {
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

// newSocket creates a socket. protocol selects among several stream protocols. Closing the socket
// leaves no connection behind.
func newSocket(p proxy.Protocol, to netip.Addr, flags, protocol int) (int, error) {
	kind := unix.SOCK_STREAM
	switch {
	case p == proxy.UDP:
		kind = unix.SOCK_DGRAM
	case isRaw(p):
		kind, protocol = unix.SOCK_RAW, unix.IPPROTO_SCTP
	case p == proxy.SCTP:
		protocol = unix.IPPROTO_SCTP
	}
	family := unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|flags|unix.SOCK_CLOEXEC, protocol)
	if err == nil {
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("make a socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

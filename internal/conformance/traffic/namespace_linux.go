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
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// Namespace is a network namespace. Its methods may be called by any goroutine.
type Namespace struct {
	Name        string
	Handle      netns.NsHandle
	Ports       *Ports // of the flows that Probe tries
	Transparent bool   // sockets may have addresses that the namespace has not
}

// New makes a network namespace, on a thread of its own, and leaves no thread in
// it. It disappears when it is closed and nothing in it runs or is open.
func New(name string, p *Ports) (*Namespace, error) {
	n := &Namespace{Name: name, Ports: p}
	err := away(func() (err error) {
		n.Handle, err = netns.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w", name, err)
	}
	return n, nil
}

// away runs f on a thread that f may move to another namespace.
func away(f func() error) error {
	runtime.LockOSThread()
	was, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("read own network namespace: %w", err)
	}
	defer was.Close()
	err = f()
	if back := netns.Set(was); back != nil {
		// The thread stays locked, so it ends with its goroutine and nobody
		// else finds itself in the wrong namespace.
		return errors.Join(err, fmt.Errorf("return to own network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}

// Do runs f on a thread that is in the namespace. Sockets that f opens and
// processes that it starts stay there; goroutines that it starts do not.
func (n *Namespace) Do(f func() error) error {
	return away(func() error {
		if err := netns.Set(n.Handle); err != nil {
			return fmt.Errorf("enter %s: %w", n.Name, err)
		}
		return f()
	})
}

// Start starts a process inside the namespace.
func (n *Namespace) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Close gives the namespace up.
func (n *Namespace) Close() error { return n.Handle.Close() }

// Dial opens a TCP or UDP connection. The zero Addr leaves the choice of the
// source to the kernel.
func (n *Namespace) Dial(ctx context.Context, p proxy.Protocol, src netip.Addr, dst netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: n.control}
	network := strings.ToLower(p.String())
	switch local := netip.AddrPortFrom(src, 0); {
	case p == proxy.SCTP:
		return nil, fmt.Errorf("dial %v: %w", p, errors.ErrUnsupported)
	case !src.IsValid():
	case p == proxy.TCP:
		d.LocalAddr = net.TCPAddrFromAddrPort(local)
	default:
		d.LocalAddr = net.UDPAddrFromAddrPort(local)
	}
	var c net.Conn
	err := n.Do(func() (err error) {
		c, err = d.DialContext(ctx, network, dst.String())
		return err
	})
	return c, err
}

// control prepares a socket before it is bound.
func (n *Namespace) control(network, _ string, c syscall.RawConn) error {
	if !n.Transparent {
		return nil
	}
	is6 := strings.HasPrefix(network, "ip6") || strings.HasSuffix(network, "6")
	return withSocket(c, func(fd int) error { return transparent(fd, is6) })
}

// withSocket lends the descriptor of a socket.
func withSocket(c syscall.RawConn, f func(fd int) error) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}

// transparent lets a socket use addresses that the namespace does not have.
func transparent(fd int, is6 bool) error {
	if is6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}

// Ports hands out source ports, each in turn, so that no connection meets what
// the kernel remembers of an earlier one.
type Ports struct{ last atomic.Uint32 }

const firstPort, portCount = 32768, 32000

func (p *Ports) next() uint16 { return uint16(firstPort + p.last.Add(1)%portCount) }

// Restart begins again if half of the ports have been used, and reports whether
// it did: the connections from them must be forgotten now.
func (p *Ports) Restart() bool {
	if p.last.Load() < portCount/2 {
		return false
	}
	p.last.Store(0)
	return true
}

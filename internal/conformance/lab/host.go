package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// Host is one network namespace of a lab.
type Host struct {
	Name  string
	Addrs []netip.Addr // the addresses it was given, without those of its links

	ns     netns.NsHandle
	nl     *netlink.Handle
	mac    net.HardwareAddr // of its eth0; the node's hosts see it as this
	anyIP  bool             // it speaks from, and for, addresses it does not have
	ports  *ports
	onNode *attachment // nil for the node and the outside
}

// newHost makes an empty network namespace.
func newHost(name string, p *ports) (*Host, error) {
	h := &Host{Name: name, ports: p}
	if err := h.create(); err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	nl, err := netlink.NewHandleAt(h.ns, unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink in %s: %w", name, err), h.ns.Close())
	}
	h.nl = nl
	if err := h.quiet(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// create makes the namespace on a thread of its own and leaves no thread in it.
func (h *Host) create() error {
	runtime.LockOSThread()
	was, err := netns.Get()
	if err != nil {
		return err
	}
	defer was.Close()
	if h.ns, err = netns.New(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	if err := netns.Set(was); err != nil {
		return err // the thread stays locked and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return nil
}

func (h *Host) close() error {
	if h.nl != nil {
		h.nl.Close()
	}
	return h.ns.Close()
}

// Do runs f on a thread that is in the host's namespace. Sockets that f opens
// and processes that it starts stay there; goroutines that it starts do not.
func (h *Host) Do(f func() error) error {
	runtime.LockOSThread()
	was, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("read own network namespace: %w", err)
	}
	defer was.Close()
	if err := netns.Set(h.ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", h.Name, err)
	}
	err = f()
	if back := netns.Set(was); back != nil {
		// The thread stays locked, so it ends with its goroutine and nobody
		// else finds itself in the wrong namespace.
		return errors.Join(err, fmt.Errorf("leave %s: %w", h.Name, back))
	}
	runtime.UnlockOSThread()
	return err
}

// Start starts a process inside the host.
func (h *Host) Start(cmd *exec.Cmd) error { return h.Do(cmd.Start) }

// Command returns a command that was started inside the host with the test's
// or program's own output streams; the caller waits for it.
func (h *Host) Command(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := h.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", name, h.Name, err)
	}
	return cmd, nil
}

// Dial opens a TCP or UDP connection from the host. The zero Addr leaves the
// choice of the source to the kernel.
func (h *Host) Dial(ctx context.Context, p proxy.Protocol, src netip.Addr, dst netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: h.control}
	var network string
	switch p {
	case proxy.TCP:
		network = "tcp"
		if src.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(src, 0))
		}
	case proxy.UDP:
		network = "udp"
		if src.IsValid() {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0))
		}
	default:
		return nil, fmt.Errorf("dial %v: %w", p, errors.ErrUnsupported)
	}
	var c net.Conn
	err := h.Do(func() error {
		var err error
		c, err = d.DialContext(ctx, network, dst.String())
		return err
	})
	return c, err
}

// Bind puts addresses on the host's loopback link, as a load balancer's
// addresses are on some nodes.
func (h *Host) Bind(addrs ...netip.Addr) error {
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback of %s: %w", h.Name, err)
	}
	return h.addAddrs(lo, addrs)
}

// Unbind takes away what Bind put there.
func (h *Host) Unbind(addrs ...netip.Addr) error {
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback of %s: %w", h.Name, err)
	}
	return h.delAddrs(lo, addrs)
}

// Has reports whether an address was given to the host.
func (h *Host) Has(a netip.Addr) bool { return slices.Contains(h.Addrs, a) }

// FlushConntrack forgets every connection that the host tracks.
func (h *Host) FlushConntrack() error {
	if err := h.nl.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		return fmt.Errorf("flush connections of %s: %w", h.Name, err)
	}
	return nil
}

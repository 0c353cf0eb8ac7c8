package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// Listener answers every connection to one address with that address and the
// client's.
type Listener struct {
	Addr netip.AddrPort

	stop func() error
	done chan struct{}
}

// untilFree is how long an address may take to become free.
const untilFree = 2 * time.Second

// Listen answers on an address of the namespace until the listener is closed.
func (n *Namespace) Listen(p proxy.Protocol, a netip.AddrPort) (*Listener, error) {
	l := &Listener{Addr: a, done: make(chan struct{})}
	serve, err := n.listen(p, l)
	// A program that another goroutine is starting at this moment has a copy of
	// every descriptor until it runs, those of closed listeners among them.
	for tick, end := time.NewTicker(time.Millisecond), time.Now().Add(untilFree); errors.Is(err, unix.EADDRINUSE); {
		if <-tick.C; time.Now().After(end) {
			break
		}
		serve, err = n.listen(p, l)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %v/%v in %s: %w", a, p, n.Name, err)
	}
	go func() {
		defer close(l.done)
		serve()
	}()
	return l, nil
}

// listen opens the socket and returns what serves it until it is closed.
func (n *Namespace) listen(p proxy.Protocol, l *Listener) (serve func(), err error) {
	lc := net.ListenConfig{Control: n.control, KeepAliveConfig: net.KeepAliveConfig{Enable: false}}
	family := "4"
	if l.Addr.Addr().Is6() {
		family = "6"
	}
	err = n.Do(func() error {
		switch p {
		case proxy.TCP:
			ln, err := lc.Listen(context.Background(), "tcp"+family, l.Addr.String())
			if err != nil {
				return err
			}
			l.stop, serve = ln.Close, func() { serveTCP(ln, l.Addr) }
		case proxy.UDP:
			pc, err := lc.ListenPacket(context.Background(), "udp"+family, l.Addr.String())
			if err != nil {
				return err
			}
			l.stop, serve = pc.Close, func() { serveUDP(pc.(*net.UDPConn), l.Addr) }
		case proxy.SCTP:
			lc.Control = func(network, address string, c syscall.RawConn) error {
				return errors.Join(n.control(network, address, c), withSocket(c, func(fd int) error {
					return takePort(fd, l.Addr.Port(), l.Addr.Addr().Is6())
				}))
			}
			pc, err := lc.ListenPacket(context.Background(), "ip"+family+":132", l.Addr.Addr().String())
			if err != nil {
				return err
			}
			l.stop, serve = pc.Close, func() { serveSCTP(pc.(*net.IPConn), l.Addr) }
		default:
			return errors.ErrUnsupported
		}
		return nil
	})
	return serve, err
}

func serveTCP(ln net.Listener, own netip.AddrPort) {
	for {
		c, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		client := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		// A client that is gone already does not concern anyone else.
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.Write(Answer{own, client}.marshal())
		_ = c.Close()
	}
}

func serveUDP(pc *net.UDPConn, own netip.AddrPort) {
	buf := make([]byte, 1500)
	for {
		_, from, err := pc.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the error of an earlier answer
		}
		_, _ = pc.WriteToUDPAddrPort(Answer{own, from.Addr().Unmap()}.marshal(), from)
	}
}

// serveSCTP answers the first message of an association. The kernel need not
// know SCTP for it; only the address translation on the way must.
func serveSCTP(pc *net.IPConn, own netip.AddrPort) {
	buf := make([]byte, 1500)
	for {
		n, from, err := pc.ReadFromIP(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		init, ok := parseSCTP(buf[:n])
		if !ok || init.kind != sctpInit || init.dst != own.Port() {
			continue
		}
		client, _ := netip.AddrFromSlice(from.IP)
		reply := sctpPacket{
			src: init.dst, dst: init.src, verification: init.tag,
			kind: sctpInitAck, tag: init.tag + 1, text: string(Answer{own, client.Unmap()}.marshal()),
		}
		_, _ = pc.WriteToIP(reply.marshal(), from)
	}
}

// Close stops answering and waits until nobody is served any more.
func (l *Listener) Close() error {
	err := l.stop()
	<-l.done
	return err
}

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
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

// answer is the text that a listener sends, "ip:port client-ip".
func answer(own netip.AddrPort, client netip.Addr) string {
	return own.String() + " " + client.String() + "\n"
}

// parseAnswer is the reverse of answer.
func parseAnswer(text string) (own netip.AddrPort, client netip.Addr, err error) {
	first, second, _ := strings.Cut(strings.TrimSpace(text), " ")
	if own, err = netip.ParseAddrPort(first); err != nil {
		return own, client, err
	}
	client, err = netip.ParseAddr(second)
	return own, client, err
}

// untilFree is how long an address may take to become free.
const untilFree = 2 * time.Second

// Listen answers on an address of the host until the listener is closed.
func (h *Host) Listen(p proxy.Protocol, a netip.AddrPort) (*Listener, error) {
	l := &Listener{Addr: a, done: make(chan struct{})}
	serve, err := h.listen(p, l)
	// A program that another goroutine is starting at this moment has a copy of
	// every descriptor until it runs, those of closed listeners among them.
	for tick, end := time.NewTicker(time.Millisecond), time.Now().Add(untilFree); errors.Is(err, unix.EADDRINUSE); {
		if <-tick.C; time.Now().After(end) {
			break
		}
		serve, err = h.listen(p, l)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %v/%v in %s: %w", a, p, h.Name, err)
	}
	go func() {
		defer close(l.done)
		serve()
	}()
	return l, nil
}

// listen opens the socket and returns what serves it until it is closed.
func (h *Host) listen(p proxy.Protocol, l *Listener) (serve func(), err error) {
	lc := net.ListenConfig{Control: h.control, KeepAliveConfig: net.KeepAliveConfig{Enable: false}}
	family := "4"
	if l.Addr.Addr().Is6() {
		family = "6"
	}
	err = h.Do(func() error {
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
				return errors.Join(h.control(network, address, c), withSocket(c, func(fd int) error {
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

// control prepares a socket of the host before it is bound.
func (h *Host) control(network, _ string, c syscall.RawConn) error {
	if !h.anyIP {
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

// transparent lets a socket use addresses that the host does not have.
func transparent(fd int, is6 bool) error {
	if is6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
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
		_, _ = c.Write([]byte(answer(own, client)))
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
		_, _ = pc.WriteToUDPAddrPort([]byte(answer(own, from.Addr().Unmap())), from)
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
			kind: sctpInitAck, tag: init.tag + 1, text: answer(own, client.Unmap()),
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

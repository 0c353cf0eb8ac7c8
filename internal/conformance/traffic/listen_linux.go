package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// Listener answers all connections to an address.
type Listener struct {
	stop func() error
	done chan struct{}
}

// Listen answers on an address of the namespace until the listener is closed. The unspecified IPv4
// address means all addresses; each answer contains the one that was reached.
func (n *Namespace) Listen(p proxy.Protocol, a netip.AddrPort) (*Listener, error) {
	switch {
	case p == proxy.UDP:
		return n.listen("udp", a, func(c io.Closer) { serveUDP(c.(*net.UDPConn), a) })
	case p == proxy.TCP, p == proxy.SCTP && !isRaw(p):
		return n.listen(strings.ToLower(p.String()), a, func(c io.Closer) { serveTCP(c.(net.Listener), answerTCP) })
	case p == proxy.SCTP:
		return n.listen("ip", a, func(c io.Closer) { serveSCTP(c.(*net.IPConn), a) })
	default:
		return nil, fmt.Errorf("listen to %v: %w", p, errors.ErrUnsupported)
	}
}

// Sink discards whatever is sent to a TCP address and answers nothing.
func (n *Namespace) Sink(a netip.AddrPort) (*Listener, error) {
	swallow := func(c *net.TCPConn) {
		// Hide ReaderFrom and WriterTo, so that the large buffer is used.
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
		_ = c.Close()
	}
	return n.listen("tcp", a, func(c io.Closer) { serveTCP(c.(net.Listener), func(c *net.TCPConn) { go swallow(c) }) })
}

func (n *Namespace) listen(network string, a netip.AddrPort, serve func(io.Closer)) (*Listener, error) {
	socket, err := n.open(network, a)
	// EADDRINUSE may be temporary: a program that another goroutine is starting has a copy of every
	// descriptor until exec, including those of closed listeners.
	for tick, end := time.NewTicker(time.Millisecond), time.Now().Add(Scaled(2*time.Second)); errors.Is(err, unix.EADDRINUSE); {
		if <-tick.C; time.Now().After(end) {
			break
		}
		socket, err = n.open(network, a)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %v/%s in %s: %w", a, network, n.Name, err)
	}
	l := &Listener{stop: socket.Close, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		serve(socket)
	}()
	return l, nil
}

func (n *Namespace) open(network string, a netip.AddrPort) (socket io.Closer, err error) {
	lc := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: false}}
	lc.Control = func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) {
			switch network {
			case "ip":
				err = filterPort(int(fd), a.Port(), a.Addr().Is6())
			case "udp": // mode userspace may need to answer from the same port
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
				if a.Addr() == netip.IPv4Unspecified() { // to answer from the address that was reached
					err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1))
				}
			}
		})
		return errors.Join(failed, err)
	}
	family := "4"
	if a.Addr().Is6() {
		family = "6"
	}
	return socket, n.Do(func() error {
		switch network {
		case "tcp":
			socket, err = lc.Listen(context.Background(), "tcp"+family, a.String())
		case "sctp":
			socket, err = listenSCTP(a)
		case "udp":
			socket, err = lc.ListenPacket(context.Background(), "udp"+family, a.String())
		default:
			socket, err = lc.ListenPacket(context.Background(), "ip"+family+":132", a.Addr().String())
		}
		return err
	})
}

// serveUntilClosed calls serve until the socket is closed. Any other error concerns one client
// only.
func serveUntilClosed(serve func() error) {
	for !errors.Is(serve(), net.ErrClosed) {
	}
}

func serveTCP(ln net.Listener, serve func(*net.TCPConn)) {
	serveUntilClosed(func() error {
		c, err := ln.Accept()
		if err == nil {
			serve(c.(*net.TCPConn))
		}
		return err
	})
}

func answerTCP(c *net.TCPConn) {
	own, client := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	// An error means that the client has gone, which concerns nobody else.
	_ = c.SetWriteDeadline(time.Now().Add(Scaled(time.Second)))
	_, _ = c.Write(Answer{own, client.Addr()}.marshal())
	_ = c.Close()
}

func serveUDP(pc *net.UDPConn, own netip.AddrPort) {
	buf, oob := make([]byte, 1500), make([]byte, 256)
	serveUntilClosed(func() error {
		_, on, _, from, err := pc.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return err
		}
		reached, source := own, []byte(nil)
		if on > 0 {
			_, info, _, err := unix.ParseOneSocketControlMessage(oob[:on])
			if err != nil {
				return err
			}
			to := [4]byte(info[8:]) // the last field of a struct in_pktinfo
			reached = netip.AddrPortFrom(netip.AddrFrom4(to), own.Port())
			source = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: to})
		}
		_, _, err = pc.WriteMsgUDPAddrPort(Answer{reached, from.Addr().Unmap()}.marshal(), source, from)
		return err
	})
}

// serveSCTP answers INITs through a raw socket. Only the kernel that translates addresses needs to
// know SCTP.
func serveSCTP(pc *net.IPConn, own netip.AddrPort) {
	buf := make([]byte, 1500)
	serveUntilClosed(func() error {
		n, from, err := pc.ReadFromIP(buf)
		init, _, ok := parseSCTP(buf[:n])
		if err != nil || !ok || init.Kind != sctpInit || init.Dst != own.Port() {
			return err
		}
		client, _ := netip.AddrFromSlice(from.IP)
		reply := sctpPacket{Src: init.Dst, Dst: init.Src, Verification: init.Tag, Kind: sctpInitAck, Tag: init.Tag + 1}
		_, err = pc.WriteToIP(reply.marshal(Answer{own, client.Unmap()}.marshal()), from)
		return err
	})
}

// Close stops listening and waits until no client is being served.
func (l *Listener) Close() error {
	err := l.stop()
	<-l.done
	return err
}

package traffic

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

const (
	acceptors = 4    // threads that take the TCP connections of a server
	backlog   = 4096 // connections that wait for one
	// nap is how long a server's thread sleeps at most before it looks whether
	// it is still wanted.
	nap = 200 * time.Millisecond
)

// Server answers on a port of every IPv4 address of a namespace. It makes
// blocking system calls on threads of its own, to disturb what is measured as
// little as it can.
type Server struct {
	sockets []int
	stopped atomic.Bool
	running sync.WaitGroup
}

// Serve answers TCP and UDP on a port, until Close.
func (n *Namespace) Serve(port uint16) (*Server, error) {
	s := &Server{}
	tcp, err := s.open(n, proxy.TCP, port)
	if err != nil {
		return nil, err
	}
	udp, err := s.open(n, proxy.UDP, port)
	if err != nil {
		return nil, err
	}
	for range acceptors {
		s.running.Go(func() { s.accept(tcp, answerTCP) })
	}
	s.running.Go(func() { s.answerUDP(udp, port) })
	return s, nil
}

// Sink takes whatever comes to a TCP port and answers nothing, until Close.
func (n *Namespace) Sink(port uint16) (*Server, error) {
	s := &Server{}
	tcp, err := s.open(n, proxy.TCP, port)
	if err != nil {
		return nil, err
	}
	s.running.Go(func() { s.accept(tcp, discard) })
	return s, nil
}

// Close stops answering.
func (s *Server) Close() error {
	s.stopped.Store(true)
	s.running.Wait()
	var errs []error
	for _, fd := range s.sockets {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

// open makes a socket on a port of every address, or closes the server.
func (s *Server) open(n *Namespace, p proxy.Protocol, port uint16) (int, error) {
	fd := -1
	err := n.Do(func() (err error) {
		if fd, err = socket(p, nap); err != nil {
			return err
		}
		s.sockets = append(s.sockets, fd)
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Port: int(port)}),
		)
		switch {
		case err != nil:
			return err
		case p == proxy.TCP:
			return unix.Listen(fd, backlog)
		default: // to answer from where a datagram was sent to
			return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		}
	})
	if err != nil {
		return -1, errors.Join(fmt.Errorf("serve %v port %d in %s: %w", p, port, n.Name, err), s.Close())
	}
	return fd, nil
}

// accept serves connections until the server is stopped.
func (s *Server) accept(ln int, serve func(fd int, client unix.Sockaddr)) {
	for !s.stopped.Load() {
		fd, client, err := unix.Accept4(ln, unix.SOCK_CLOEXEC)
		if err != nil {
			continue // a nap, or a client that is gone already
		}
		serve(fd, client)
		_ = unix.Close(fd)
	}
}

func answerTCP(fd int, client unix.Sockaddr) {
	own, err := unix.Getsockname(fd)
	if err != nil {
		return // the client is gone
	}
	_, _ = unix.Write(fd, Answer{addrPort(own), addrPort(client).Addr()}.marshal())
}

// discard reads until the client has had enough.
func discard(fd int, _ unix.Sockaddr) {
	buf := make([]byte, 256<<10)
	for {
		n, err := unix.Read(fd, buf)
		if n == 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// answerUDP answers datagrams until the server is stopped.
func (s *Server) answerUDP(fd int, port uint16) {
	buf, oob := make([]byte, 512), make([]byte, 256)
	for !s.stopped.Load() {
		_, on, _, from, err := unix.Recvmsg(fd, buf, oob, 0)
		if err != nil {
			continue // a nap, or the error of an earlier answer
		}
		to, err := destination(oob[:on])
		if err != nil {
			continue
		}
		answer := Answer{netip.AddrPortFrom(netip.AddrFrom4(to), port), addrPort(from).Addr()}
		_ = unix.Sendmsg(fd, answer.marshal(), unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: to}), from, 0)
	}
}

// destination reads the address that a datagram was sent to.
func destination(oob []byte) ([4]byte, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return [4]byte{}, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO &&
			len(m.Data) >= unix.SizeofInet4Pktinfo {
			return (*unix.Inet4Pktinfo)(unsafe.Pointer(&m.Data[0])).Addr, nil
		}
	}
	return [4]byte{}, io.ErrUnexpectedEOF
}

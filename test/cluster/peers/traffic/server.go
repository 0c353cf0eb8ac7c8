package traffic

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/internal/conformance/lab"
)

// The ports of a server.
const (
	Port     = 8080 // TCP and UDP: answers with its own address and closes
	BulkPort = 8081 // TCP: takes whatever comes
)

const (
	acceptors = 4    // threads that take TCP connections
	backlog   = 4096 // connections that wait for one
	// nap is how long a server's thread sleeps at most before it looks whether
	// it is still wanted.
	nap = 200 // milliseconds
)

// Server answers on every address of a host.
type Server struct {
	tcp, udp, bulk int // sockets

	stopped atomic.Bool
	running sync.WaitGroup
}

// Serve answers in a host until Close.
func Serve(h *lab.Host) (*Server, error) {
	s := &Server{tcp: -1, udp: -1, bulk: -1}
	err := h.Do(func() error {
		var err error
		if s.tcp, err = listen(Port); err != nil {
			return err
		}
		if s.bulk, err = listen(BulkPort); err != nil {
			return err
		}
		s.udp, err = listenUDP(Port)
		return err
	})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("serve in %s: %w", h.Name, err)
	}
	for range acceptors {
		s.running.Go(func() { s.accept(s.tcp, answerTCP) })
	}
	s.running.Go(func() { s.accept(s.bulk, swallow) })
	s.running.Go(s.answerUDP)
	return s, nil
}

// Close stops answering.
func (s *Server) Close() {
	s.stopped.Store(true)
	s.running.Wait()
	s.close()
}

func (s *Server) close() {
	for _, fd := range []int{s.tcp, s.udp, s.bulk} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// socket makes a socket for any local address of IPv4.
func socket(kind, port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: nap * 1000}),
		unix.Bind(fd, &unix.SockaddrInet4{Port: port}),
	)
	if err != nil {
		return -1, errors.Join(fmt.Errorf("bind port %d: %w", port, err), unix.Close(fd))
	}
	return fd, nil
}

func listen(port int) (int, error) {
	fd, err := socket(unix.SOCK_STREAM, port)
	if err != nil {
		return -1, err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return -1, errors.Join(fmt.Errorf("listen on port %d: %w", port, err), unix.Close(fd))
	}
	return fd, nil
}

// listenUDP asks for the destination of each datagram, to answer from there.
func listenUDP(port int) (int, error) {
	fd, err := socket(unix.SOCK_DGRAM, port)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1); err != nil {
		return -1, errors.Join(fmt.Errorf("ask for destinations: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// accept serves connections until the server is stopped.
func (s *Server) accept(ln int, serve func(fd int)) {
	for !s.stopped.Load() {
		fd, _, err := unix.Accept4(ln, unix.SOCK_CLOEXEC)
		if err != nil {
			continue // a nap, or a client that is gone already
		}
		serve(fd)
		_ = unix.Close(fd)
	}
}

// answerTCP sends the address that the client was led to.
func answerTCP(fd int) {
	own, err := unix.Getsockname(fd)
	if err != nil {
		return // the client is gone
	}
	if own, ok := own.(*unix.SockaddrInet4); ok {
		_, _ = unix.Write(fd, own.Addr[:])
	}
}

// swallow reads until the client has had enough.
func swallow(fd int) {
	buf := make([]byte, chunk)
	for {
		n, err := unix.Read(fd, buf)
		if n == 0 || err != nil && err != unix.EINTR {
			return
		}
	}
}

// answerUDP answers datagrams until the server is stopped.
func (s *Server) answerUDP() {
	buf, oob := make([]byte, 512), make([]byte, 256)
	for !s.stopped.Load() {
		_, on, _, from, err := unix.Recvmsg(s.udp, buf, oob, 0)
		if err != nil {
			continue // a nap, or the error of an earlier answer
		}
		to, err := destination(oob[:on])
		if err != nil {
			continue
		}
		reply := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: to})
		_ = unix.Sendmsg(s.udp, to[:], reply, from, 0)
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

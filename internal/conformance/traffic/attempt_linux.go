package traffic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// open makes the flow's socket and sends its first packet. It returns what was
// seen if that is already the end of it.
func (a *attempt) open(n *Namespace) (*Seen, error) {
	if err := a.socket(n); err != nil {
		return nil, err
	}
	dst := a.Dst
	if a.Protocol == proxy.SCTP {
		dst = netip.AddrPortFrom(dst.Addr(), 0) // a raw socket has no port
	}
	err := unix.Connect(a.fd, sockaddr(dst))
	if err != nil && err != unix.EINPROGRESS {
		return failed(err), nil
	}
	// The host's own firewall reports EPERM for what it does not let out. It may
	// still refuse it by a message to the socket, so the flow goes on.
	if err := a.send(); err != nil && err != unix.EPERM {
		return failed(err), nil
	}
	return nil, nil
}

// send sends the first message of a protocol that the kernel has no connections
// for.
func (a *attempt) send() error {
	var err error
	switch a.Protocol {
	case proxy.UDP:
		_, err = unix.Write(a.fd, []byte("?"))
	case proxy.SCTP:
		init := sctpPacket{src: a.port, dst: a.Dst.Port(), kind: sctpInit, tag: uint32(a.port) << 8}
		_, err = unix.Write(a.fd, init.marshal())
	}
	return err
}

// socket makes a socket and binds it to the source and a fresh port.
func (a *attempt) socket(n *Namespace) error {
	kind, protocol := unix.SOCK_STREAM, 0
	switch a.Protocol {
	case proxy.UDP:
		kind = unix.SOCK_DGRAM
	case proxy.SCTP:
		kind, protocol = unix.SOCK_RAW, unix.IPPROTO_SCTP
	}
	family := unix.AF_INET
	if a.Dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	var err error
	if a.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol); err != nil {
		return err
	}
	if err := a.options(n); err != nil {
		return errors.Join(err, unix.Close(a.fd))
	}
	for {
		a.port = n.Ports.next()
		local := netip.AddrPortFrom(a.Src, a.port)
		if a.Protocol == proxy.SCTP {
			local = netip.AddrPortFrom(a.Src, 0)
			if err := takePort(a.fd, a.port, a.Src.Is6()); err != nil {
				return errors.Join(err, unix.Close(a.fd))
			}
		}
		switch err := unix.Bind(a.fd, sockaddr(local)); err {
		case nil:
			return nil
		case unix.EADDRINUSE:
			continue
		default:
			return errors.Join(err, unix.Close(a.fd))
		}
	}
}

// options asks for error messages with their origin, which tells an ICMP
// refusal from a reset, and for a close that leaves no trace.
func (a *attempt) options(n *Namespace) error {
	is6 := a.Dst.Addr().Is6()
	var errs []error
	if n.Transparent {
		errs = append(errs, transparent(a.fd, is6))
	}
	if is6 {
		errs = append(errs, unix.SetsockoptInt(a.fd, unix.SOL_IPV6, unix.IPV6_RECVERR, 1))
	} else {
		errs = append(errs, unix.SetsockoptInt(a.fd, unix.SOL_IP, unix.IP_RECVERR, 1))
	}
	if a.Protocol == proxy.TCP {
		errs = append(errs, unix.SetsockoptLinger(a.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	}
	return errors.Join(errs...)
}

// connected reports whether there is a TCP connection.
func (a *attempt) connected() bool {
	if a.Protocol != proxy.TCP {
		return false
	}
	_, err := unix.Getpeername(a.fd)
	return err == nil
}

// failed translates the error of a system call.
func failed(err error) *Seen {
	if err == unix.ECONNREFUSED {
		return &Seen{Fate: Refused}
	}
	return &Seen{Fate: Broken, Err: err}
}

// read takes what the socket has. It returns nil if the flow goes on.
func (a *attempt) read() *Seen {
	if seen := a.readError(); seen != nil {
		return seen
	}
	var buf [512]byte
	for {
		n, err := unix.Read(a.fd, buf[:])
		switch {
		case err == unix.EAGAIN || err == unix.ENOTCONN:
			return nil
		case err == unix.ECONNREFUSED && a.Protocol == proxy.TCP:
			return &Seen{Fate: Reset}
		case err != nil && a.Protocol == proxy.SCTP:
			continue // of another flow between the same addresses, or seen already
		case err != nil:
			return failed(err)
		case a.Protocol == proxy.SCTP:
			if seen := a.sctpAnswer(buf[:n]); seen != nil {
				return seen
			}
		default:
			a.text = append(a.text, buf[:n]...)
			if n == 0 || bytes.HasSuffix(a.text, []byte("\n")) {
				return answered(a.text)
			}
		}
	}
}

func answered(text []byte) *Seen {
	a, err := parseAnswer(text)
	if err != nil {
		return &Seen{Fate: Broken, Err: err}
	}
	return &Seen{Fate: Answered, Answer: a}
}

// sctpAnswer reads an answer among all the SCTP packets that a raw socket gets.
func (a *attempt) sctpAnswer(b []byte) *Seen {
	if a.Dst.Addr().Is4() {
		if len(b) < 20 || len(b) < int(b[0]&15)*4 {
			return nil
		}
		b = b[int(b[0]&15)*4:]
	}
	p, ok := parseSCTP(b)
	if !ok || p.kind != sctpInitAck || p.dst != a.port {
		return nil
	}
	return answered([]byte(p.text))
}

// icmpOrigins are the values of sock_extended_err.ee_origin that stand for a
// message from the network.
const (
	originICMP  = 2
	originICMP6 = 3
)

// readError takes the errors that the network reported for the flow.
func (a *attempt) readError() *Seen {
	var payload [128]byte
	oob := make([]byte, 256)
	for {
		n, on, _, _, err := unix.Recvmsg(a.fd, payload[:], oob, unix.MSG_ERRQUEUE)
		if err != nil {
			return nil
		}
		// The payload is the packet that caused the error; a raw socket hears
		// of those of other sockets too.
		if a.Protocol == proxy.SCTP && (n < 2 || binary.BigEndian.Uint16(payload[:]) != a.port) {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(oob[:on])
		if err != nil {
			return &Seen{Fate: Broken, Err: err}
		}
		for _, m := range messages {
			if seen := extendedError(m); seen != nil {
				return seen
			}
		}
	}
}

// extendedError reads a struct sock_extended_err.
func extendedError(m unix.SocketControlMessage) *Seen {
	v4 := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR
	v6 := m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
	if !v4 && !v6 || len(m.Data) < int(unsafe.Sizeof(unix.SockExtendedErr{})) {
		return nil
	}
	errno := unix.Errno(binary.NativeEndian.Uint32(m.Data))
	if origin := m.Data[4]; errno == unix.ECONNREFUSED && (origin == originICMP || origin == originICMP6) {
		return &Seen{Fate: Refused}
	}
	return failed(errno)
}

package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

const (
	window     = 128             // flows of one Probe that are under way at once
	resendTime = time.Second     // after which a datagram is sent once more: a busy machine may lose one, and TCP does so by itself
	answerTime = 5 * time.Second // that a TCP connection may take to bring an answer
)

// Probe tries flows from the namespace, many at a time, and returns what became of
// each. An error means that the namespace itself is out of order.
func (n *Namespace) Probe(ctx context.Context, flows []Flow) ([]Seen, error) {
	seen := make([]Seen, len(flows))
	var active []*attempt
	err := n.Do(func() error {
		for next := 0; next < len(flows) || len(active) > 0; {
			if err := ctx.Err(); err != nil {
				return err
			}
			for ; next < len(flows) && len(active) < window; next++ {
				a := &attempt{Flow: flows[next], seen: &seen[next]}
				if err := a.open(n); err != nil {
					return fmt.Errorf("open %v %v to %v: %w", a.Protocol, a.Src, a.Dst, err)
				}
				active = append(active, a)
			}
			if err := progress(active); err != nil {
				return err
			}
			active = slices.DeleteFunc(active, func(a *attempt) bool { return a.ended && unix.Close(a.fd) == nil })
		}
		return nil
	})
	for _, a := range active {
		err = errors.Join(err, unix.Close(a.fd))
	}
	if err != nil {
		return nil, fmt.Errorf("probe from %s: %w", n.Name, err)
	}
	return seen, nil
}

// attempt is one flow under way.
type attempt struct {
	Flow
	seen     *Seen
	ended    bool
	fd       int
	port     uint16
	deadline time.Time
	resend   time.Time // when a datagram is sent once more
	extended bool      // the deadline is later, as there is a connection
	text     []byte    // of the answer so far
}

// end says what became of the flow.
func (a *attempt) end(s Seen) { *a.seen, a.ended = s, true }

// fail ends the flow by the error of a system call.
func (a *attempt) fail(err error) {
	if err == unix.ECONNREFUSED {
		a.end(Seen{Fate: Refused})
	} else {
		a.end(Seen{Fate: Broken, Err: err})
	}
}

// progress waits until some flow has something to say or its time is over.
func progress(active []*attempt) error {
	wait := resendTime
	polls := make([]unix.PollFd, len(active))
	for i, a := range active {
		if polls[i] = (unix.PollFd{Fd: int32(a.fd), Events: unix.POLLIN}); a.ended {
			wait = 0
		}
		wait = min(wait, max(0, time.Until(a.deadline)))
	}
	if _, err := unix.Poll(polls, int(wait/time.Millisecond)+1); err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for answers: %w", err)
	}
	now := time.Now()
	for i, a := range active {
		if polls[i].Revents != 0 && !a.ended {
			a.read()
		}
		switch {
		case a.ended:
		case now.Before(a.deadline) && now.After(a.resend):
			a.resend = now.Add(resendTime)
			_ = a.send() // an error of it shows when the socket is read
		case now.Before(a.deadline):
		case !a.extended && a.connected():
			// Somebody took the connection, so it is not silence; the answer
			// itself depends on how busy this machine is.
			a.extended, a.deadline = true, now.Add(answerTime)
		default:
			a.end(Seen{Fate: Silent})
		}
	}
	return nil
}

// open makes the flow's socket and sends its first packet.
func (a *attempt) open(n *Namespace) error {
	a.deadline, a.resend = time.Now().Add(a.Patience), time.Now().Add(resendTime)
	kind, protocol, dst := unix.SOCK_STREAM, 0, a.Dst
	switch a.Protocol {
	case proxy.UDP:
		kind = unix.SOCK_DGRAM
	case proxy.SCTP: // a raw socket has no port
		kind, protocol, dst = unix.SOCK_RAW, unix.IPPROTO_SCTP, netip.AddrPortFrom(dst.Addr(), 0)
	}
	family := unix.AF_INET
	if dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	var err error
	if a.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol); err != nil {
		return err
	}
	if err := errors.Join(a.options(n), a.bind(n)); err != nil {
		return errors.Join(err, unix.Close(a.fd))
	}
	if err := unix.Connect(a.fd, sockaddr(dst)); err != nil && err != unix.EINPROGRESS {
		a.fail(err)
	} else if err := a.send(); err != nil && err != unix.EPERM {
		// The host's own firewall reports EPERM for what it does not let out. It may
		// still refuse it by a message to the socket, so the flow goes on.
		a.fail(err)
	}
	return nil
}

// options asks for error messages with their origin, which tells an ICMP
// refusal from a reset, and for a close that leaves no trace.
func (a *attempt) options(n *Namespace) error {
	is6 := a.Dst.Addr().Is6()
	level, option := unix.SOL_IP, unix.IP_RECVERR
	if is6 {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	err := unix.SetsockoptInt(a.fd, level, option, 1)
	if n.Transparent {
		err = errors.Join(err, transparent(a.fd, is6))
	}
	if a.Protocol == proxy.TCP {
		err = errors.Join(err, unix.SetsockoptLinger(a.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	}
	return err
}

// bind binds the socket to the source and a fresh port.
func (a *attempt) bind(n *Namespace) error {
	for {
		a.port = n.Ports.next()
		local := netip.AddrPortFrom(a.Src, a.port)
		if a.Protocol == proxy.SCTP {
			local = netip.AddrPortFrom(a.Src, 0)
			if err := takePort(a.fd, a.port, a.Src.Is6()); err != nil {
				return err
			}
		}
		if err := unix.Bind(a.fd, sockaddr(local)); err != unix.EADDRINUSE {
			return err
		}
	}
}

// send sends the first message of a protocol that the kernel has no connections
// for.
func (a *attempt) send() (err error) {
	switch a.Protocol {
	case proxy.UDP:
		_, err = unix.Write(a.fd, []byte("?"))
	case proxy.SCTP:
		init := sctpPacket{src: a.port, dst: a.Dst.Port(), kind: sctpInit, tag: uint32(a.port) << 8}
		_, err = unix.Write(a.fd, init.marshal())
	}
	return err
}

// connected reports whether there is a TCP connection.
func (a *attempt) connected() bool {
	if a.Protocol != proxy.TCP {
		return false
	}
	_, err := unix.Getpeername(a.fd)
	return err == nil
}

// read takes what the socket has.
func (a *attempt) read() {
	a.readError()
	var buf [512]byte
	for !a.ended {
		n, err := unix.Read(a.fd, buf[:])
		switch {
		case err == unix.EAGAIN || err == unix.ENOTCONN:
			return
		case err == unix.ECONNREFUSED && a.Protocol == proxy.TCP:
			a.end(Seen{Fate: Reset})
		case err != nil && a.Protocol == proxy.SCTP:
			// of another flow between the same addresses, or seen already
		case err != nil:
			a.fail(err)
		case a.Protocol == proxy.SCTP:
			a.sctpAnswer(buf[:n])
		default:
			a.text = append(a.text, buf[:n]...)
			if n == 0 || bytes.HasSuffix(a.text, []byte("\n")) {
				a.answered(a.text)
			}
		}
	}
}

func (a *attempt) answered(text []byte) {
	answer, err := parseAnswer(text)
	if err != nil {
		a.fail(err)
		return
	}
	a.end(Seen{Fate: Answered, Answer: answer})
}

// sctpAnswer looks for the answer among all the SCTP packets that a raw socket gets.
func (a *attempt) sctpAnswer(b []byte) {
	if a.Dst.Addr().Is4() {
		if len(b) < 20 || len(b) < int(b[0]&15)*4 {
			return
		}
		b = b[int(b[0]&15)*4:]
	}
	if p, ok := parseSCTP(b); ok && p.kind == sctpInitAck && p.dst == a.port {
		a.answered([]byte(p.text))
	}
}

// readError takes the errors that the network reported for the flow.
func (a *attempt) readError() {
	var payload [128]byte
	oob := make([]byte, 256)
	for !a.ended {
		n, on, _, _, err := unix.Recvmsg(a.fd, payload[:], oob, unix.MSG_ERRQUEUE)
		if err != nil {
			return
		}
		// The payload is the packet that caused the error; a raw socket hears
		// of those of other sockets too.
		if a.Protocol == proxy.SCTP && (n < 2 || binary.BigEndian.Uint16(payload[:]) != a.port) {
			continue
		}
		messages, err := unix.ParseSocketControlMessage(oob[:on])
		if err != nil {
			a.fail(err)
		}
		for _, m := range messages {
			a.extendedError(m)
		}
	}
}

// extendedError reads a struct sock_extended_err. A refusal that comes here is an
// ICMP message; a reset does not.
func (a *attempt) extendedError(m unix.SocketControlMessage) {
	v4 := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR
	v6 := m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
	if (v4 || v6) && !a.ended && len(m.Data) >= int(unsafe.Sizeof(unix.SockExtendedErr{})) {
		a.fail(unix.Errno(binary.NativeEndian.Uint32(m.Data)))
	}
}

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

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

const (
	resendInterval = time.Second     // for datagrams, which a busy machine may lose; TCP retransmits by itself
	answerTimeout  = 5 * time.Second // for the answer on an established connection
)

// maxInFlight returns how many flows of one Probe run concurrently. It is low for SCTP
// associations, so that none retransmits its INIT: conntrack records the answer to the last INIT
// and drops what follows from the first.
func maxInFlight(p proxy.Protocol) int {
	if p == proxy.SCTP && !isRaw(p) {
		return 16
	}
	return 128
}

// Probe tries flows from the namespace, many concurrently, and returns the result of each. An error
// means that the namespace itself does not work.
func (n *Namespace) Probe(ctx context.Context, flows []Flow) ([]Seen, error) {
	seen := make([]Seen, len(flows))
	var active []*attempt
	err := n.Do(func() error {
		for next := 0; next < len(flows) || len(active) > 0; {
			if err := ctx.Err(); err != nil {
				return err
			}
			for ; next < len(flows) && len(active) < maxInFlight(flows[next].Protocol); next++ {
				a := &attempt{Flow: flows[next], to: flows[next].Dst, seen: &seen[next], raw: isRaw(flows[next].Protocol)}
				if a.Mapped {
					a.to = netip.AddrPortFrom(netip.AddrFrom16(a.Dst.Addr().As16()), a.Dst.Port())
				}
				if err := a.open(n); err != nil {
					return fmt.Errorf("open %v %v to %v: %w", a.Protocol, a.Src, a.Dst, err)
				}
				active = append(active, a)
			}
			if err := progress(active); err != nil {
				return err
			}
			active = slices.DeleteFunc(active, func(a *attempt) bool { return a.ended && a.close() == nil })
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

// attempt is a flow in progress.
type attempt struct {
	Flow
	to       netip.AddrPort // Dst in the socket's address family
	seen     *Seen
	raw      bool // SCTP over a raw socket
	ended    bool
	fd       int
	port     uint16
	deadline time.Time
	resend   time.Time // when to send the datagram again
	extended bool      // the deadline was extended because the connection is established
	text     []byte    // the answer so far
}

func (a *attempt) end(s Seen) { *a.seen, a.ended = s, true }

func (a *attempt) close() error {
	if a.BeforeClose != nil {
		a.BeforeClose(a.fd)
	}
	return unix.Close(a.fd)
}

// fail ends the flow with the error of a system call.
func (a *attempt) fail(err error) {
	if err == unix.ECONNREFUSED {
		a.end(Seen{Fate: Refused})
	} else {
		a.end(Seen{Fate: Broken, Err: err})
	}
}

// progress waits for an event or a timeout of some flow, and handles it.
func progress(active []*attempt) error {
	wait := resendInterval
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
			a.resend = now.Add(resendInterval)
			_ = a.send() // read reports an error
		case now.Before(a.deadline):
		case !a.extended && a.connected():
			// The connection is established, so this is not silence; how long the answer takes
			// depends on the load of this machine.
			a.extended, a.deadline = true, now.Add(Scaled(answerTimeout))
		default:
			a.end(Seen{Fate: Silent})
		}
	}
	return nil
}

func (a *attempt) open(n *Namespace) error {
	a.deadline, a.resend = time.Now().Add(Scaled(a.Patience)), time.Now().Add(resendInterval)
	if err := a.socket(); err != nil {
		return err
	}
	if err := a.bind(n); err != nil {
		return errors.Join(err, unix.Close(a.fd))
	}
	var err error
	if !a.Unconnected {
		err = unix.Connect(a.fd, sockaddr(a.to))
	}
	if err != nil && err != unix.EINPROGRESS {
		a.fail(err)
	} else if err := a.send(); err != nil && err != unix.EPERM {
		// EPERM means that the host's own netfilter rules dropped the packet. They may also have
		// sent an ICMP error, so the flow continues.
		a.fail(err)
	}
	return nil
}

// socket creates the flow's socket. IP_RECVERR queues errors with their origin, which tells an ICMP
// rejection from a reset; MPTCP does not support it.
func (a *attempt) socket() (err error) {
	if a.Multipath && hasMPTCP() {
		a.fd, err = newSocket(a.Protocol, a.to.Addr(), unix.SOCK_NONBLOCK, unix.IPPROTO_MPTCP)
		return err
	}
	if a.fd, err = newSocket(a.Protocol, a.to.Addr(), unix.SOCK_NONBLOCK, 0); err != nil {
		return err
	}
	level, option := unix.SOL_IP, unix.IP_RECVERR
	if a.Dst.Addr().Is6() {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	if err = unix.SetsockoptInt(a.fd, level, option, 1); err != nil {
		return errors.Join(err, unix.Close(a.fd))
	}
	return nil
}

// bind binds the socket to the source and a fresh port. A raw socket ignores the port and needs a
// filter.
func (a *attempt) bind(n *Namespace) error {
	src := a.Src
	if a.Unbound {
		src = [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[a.to.Addr().BitLen()/128]
	}
	for {
		a.port = n.Ports.next()
		if a.raw {
			if err := filterPort(a.fd, a.port, a.Src.Is6()); err != nil {
				return err
			}
		}
		if err := unix.Bind(a.fd, sockaddr(netip.AddrPortFrom(src, a.port))); err != unix.EADDRINUSE {
			return err
		}
	}
}

// send sends the first message, unless connect has already done so.
func (a *attempt) send() (err error) {
	switch {
	case a.Unconnected:
		err = unix.Sendto(a.fd, []byte("?"), 0, sockaddr(a.to))
	case a.Protocol == proxy.UDP:
		_, err = unix.Write(a.fd, []byte("?"))
	case a.raw:
		init := sctpPacket{Src: a.port, Dst: a.Dst.Port(), Kind: sctpInit, Tag: uint32(a.port) << 8}
		_, err = unix.Write(a.fd, init.marshal(nil))
	}
	return err
}

// connected reports whether a TCP connection or SCTP association is established.
func (a *attempt) connected() bool {
	_, err := unix.Getpeername(a.fd)
	return err == nil && a.Protocol != proxy.UDP && !a.raw
}

func (a *attempt) read() {
	a.readError()
	var buf [512]byte
	for !a.ended {
		n, from, err := unix.Recvfrom(a.fd, buf[:], 0)
		switch {
		case err == unix.EAGAIN || err == unix.ENOTCONN:
			return
		case err == unix.ECONNREFUSED && (a.Protocol == proxy.TCP || a.aborted()):
			a.end(Seen{Fate: Reset})
		case err != nil && a.raw:
			// of another flow between the same addresses, or already read from the error queue
		case err != nil:
			a.fail(err)
		case a.raw:
			a.sctpAnswer(buf[:n])
		case a.Protocol == proxy.UDP && addrPort(from) != a.Dst:
			a.fail(fmt.Errorf("the answer came from %v, not from %v", addrPort(from), a.Dst))
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
	if err = errors.Join(err, a.checkPeer()); err != nil {
		a.fail(err)
	} else {
		a.end(Seen{Fate: Answered, Answer: answer})
	}
}

// checkPeer returns an error if getpeername returns another address than the program connected to.
func (a *attempt) checkPeer() error {
	if a.Protocol == proxy.SCTP || a.Unconnected {
		return nil
	}
	peer, err := unix.Getpeername(a.fd)
	if err == nil && addrPort(peer) != a.Dst {
		err = fmt.Errorf("the socket's peer is %v, not %v", addrPort(peer), a.Dst)
	}
	return err
}

// addrPort is the inverse of sockaddr; IPv4-mapped IPv6 addresses become IPv4.
func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// sctpAnswer checks whether a packet received on a raw socket is the answer.
func (a *attempt) sctpAnswer(b []byte) {
	if a.Dst.Addr().Is4() {
		b = b[min(len(b), 20):] // skip the IP header, which has no options here
	}
	if p, text, ok := parseSCTP(b); ok && p.Kind == sctpInitAck && p.Dst == a.port {
		a.answered(text)
	}
}

// readError reads the error queue. Each entry has a struct sock_extended_err, which starts with the
// errno. A refusal in the queue is an ICMP message; a reset is not queued.
func (a *attempt) readError() {
	payload, oob := make([]byte, 128), make([]byte, 256)
	for !a.ended && (a.raw || a.Protocol != proxy.SCTP) { // kernel SCTP has no error queue
		n, on, _, _, err := unix.Recvmsg(a.fd, payload, oob, unix.MSG_ERRQUEUE)
		if err != nil {
			return
		}
		// The payload is the packet that caused the error; a raw socket also gets those of other
		// sockets.
		if a.raw && (n < 2 || binary.BigEndian.Uint16(payload) != a.port) {
			continue
		}
		_, extended, _, err := unix.ParseOneSocketControlMessage(oob[:on])
		if err == nil {
			err = unix.Errno(binary.NativeEndian.Uint32(extended))
		}
		a.fail(err)
	}
}

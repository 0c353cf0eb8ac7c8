package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/ct"
	"sluice/internal/proxy"
)

const (
	firstPort, lastPort = 10270, 10370 // tried for the listeners
	backlog             = 4096
	keepAlive           = 5 * time.Minute // of silence before a TCP peer is probed
)

// option is a socket option and its value.
type option struct{ level, name, value int }

var (
	transparent = [...]option{{unix.SOL_IP, unix.IP_TRANSPARENT, 1}, {unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1}}
	originalDst = [...]option{{unix.SOL_IP, unix.IP_RECVORIGDSTADDR, 1}, {unix.SOL_IPV6, unix.IPV6_RECVORIGDSTADDR, 1}}
	bindNoPort  = option{unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1}
	only6       = option{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1}
	sharePort   = option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}
	shareAddr   = option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}
	// Rules do not redirect packets of sockets with this mark, and deliver to a UDP socket that has
	// it the datagrams it is connected for.
	own = option{unix.SOL_SOCKET, unix.SO_MARK, ownMark}
	// Dead peers are detected, and small writes are sent immediately. Accepted connections inherit
	// these options from their listener.
	keepTCP = []option{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.SOL_TCP, unix.TCP_KEEPIDLE, int(keepAlive / time.Second)},
		{unix.SOL_TCP, unix.TCP_NODELAY, 1},
	}
)

// openSocket opens a non-blocking socket with options, bound to an address if that is valid.
func (s *server) openSocket(p proxy.Protocol, f proxy.Family, at netip.AddrPort, options ...option) (int, error) {
	domain := [...]int{proxy.IPv4: unix.AF_INET, proxy.IPv6: unix.AF_INET6}[f]
	kind := unix.SOCK_STREAM
	if p == proxy.UDP {
		kind = unix.SOCK_DGRAM
	} else {
		options = append(append(options, keepTCP...), own)
	}
	fd, err := s.socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for _, o := range options {
		if err == nil {
			err = unix.SetsockoptInt(fd, o.level, o.name, o.value)
		}
	}
	if err == nil && at.Addr().IsValid() {
		err = unix.Bind(fd, sockaddr(at))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// listen opens the missing listeners: for each scope, with and without masquerading, on the next
// port that is free in all families. Existing listeners keep their ports.
func (s *server) listen() error {
	next := uint16(firstPort)
	for _, kind := range []listener{{}, {Masquerade: 1}, {Scope: proxy.ScopeLocal}, {Scope: proxy.ScopeLocal, Masquerade: 1}} {
		for _, l := range s.listeners {
			if l.Scope == kind.Scope && l.Masquerade == kind.Masquerade {
				kind.Port = l.Port
			}
		}
		if kind.Port != 0 {
			if err := s.listenAt(kind); err != nil {
				return fmt.Errorf("listen on port %d: %w", kind.Port, err)
			}
			continue
		}
		for ; ; next++ {
			kind.Port = next
			err := s.listenAt(kind)
			if err == nil {
				next++
				break
			}
			if !errors.Is(err, unix.EADDRINUSE) || next == lastPort {
				return fmt.Errorf("listen on port %d: %w", next, err)
			}
		}
	}
	return nil
}

// listenAt opens a listener for each worker, for each protocol and family that has none of this
// kind yet. They share the port; the kernel always delivers the packets of a flow to the same one.
// It opens all or none.
func (s *server) listenAt(kind listener) (err error) {
	had := len(s.listeners)
	defer func() {
		if err != nil {
			for _, l := range s.listeners[had:] {
				_ = unix.Close(l.fd)
			}
			s.listeners = s.listeners[:had]
		}
	}()
	for _, f := range s.families {
		for _, kind.Protocol = range []proxy.Protocol{proxy.TCP, proxy.UDP} {
			if kind.family = f; slices.ContainsFunc(s.listeners[:had], kind.sameKind) {
				continue
			}
			for range s.workers {
				l := kind
				if err := s.openListener(&l); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *server) openListener(l *listener) (err error) {
	options := []option{sharePort, transparent[l.family], own}
	if l.family == proxy.IPv6 {
		options = append(options, only6)
	}
	if l.Protocol == proxy.UDP {
		options = append(options, originalDst[l.family])
	} else { // accepted sockets inherit it, and let programs of the node listen on the ports of Services
		options = append(options, shareAddr)
	}
	if l.fd, err = s.openSocket(l.Protocol, l.family, netip.AddrPortFrom(nftables.SocketAddr(l.family), l.Port), options...); err != nil {
		return err
	}
	s.add(l)
	if l.Protocol == proxy.TCP {
		return unix.Listen(l.fd, backlog)
	}
	return nil
}

// connect starts to connect to an endpoint. The endpoint sees the client's address; it sees the
// node's address if masquerade is 1, if it is the client itself, or if it would otherwise send its
// replies to the client directly, not through this node. With TCP it also sees the client's port,
// unless that is in use. With UDP it sees a port that the client's own flows do not use: when
// another mode continues the flow to the same endpoint, the kernel would otherwise deliver the
// replies to our socket.
func (w *worker) connect(p proxy.Protocol, client netip.AddrPort, to proxy.Endpoint, masquerade int) (fd int, err error) {
	f := proxy.FamilyOf(to.Addr.Addr())
	sources := []netip.AddrPort{client, netip.AddrPortFrom(client.Addr(), 0)}
	switch {
	case w.hides(client.Addr(), to, masquerade):
		sources = []netip.AddrPort{{}}
	case p == proxy.UDP:
		sources = append(highPorts(client.Addr()), client)
	}
	for i, source := range sources {
		if p == proxy.UDP && i < len(sources)-1 && w.inUse(source, to.Addr) {
			continue
		}
		options := []option{transparent[f]}
		switch {
		case !source.Addr().IsValid():
			options = nil
		case source.Port() == 0:
			options = append(options, bindNoPort)
		case p == proxy.TCP: // other connections of the client may use the same port
			options = append(options, shareAddr)
		}
		if fd, err = w.openSocket(p, f, source, options...); err != nil {
			continue
		}
		if p == proxy.UDP {
			err = connectUDP(fd, to.Addr)
		} else {
			err = unix.Connect(fd, sockaddr(to.Addr))
		}
		if err == nil || err == unix.EINPROGRESS {
			return fd, nil
		}
		_ = unix.Close(fd)
	}
	return -1, err
}

// inUse reports whether the kernel has a flow by UDP whose replies a socket would take: one of the
// client with the endpoint itself, or one that another mode has translated and that goes on. Those of
// our earlier sessions, which the kernel remembers for a while, do not count.
func (w *worker) inUse(source, endpoint netip.AddrPort) bool {
	mark, err := w.flows.Find(unix.IPPROTO_UDP, ct.Tuple{Src: endpoint, Dst: source})
	return err == nil && mark&ownMark == 0
}

// hides reports whether an endpoint must see the node's address instead of the client's.
func (s *server) hides(client netip.Addr, to proxy.Endpoint, masquerade int) bool {
	// A pod must not receive packets from its own address.
	return masquerade == 1 || to.Hairpins(client) || s.subnets.share(client, to.Addr.Addr())
}

// highPorts returns random ports above the default range of ephemeral ports, which clients do not
// get unless they ask for them. Nor do processes of this node listen there, as many do below that
// range: a port of a session cannot be bound at the wildcard address, as that of VXLAN is.
func highPorts(a netip.Addr) (out []netip.AddrPort) {
	const first, end, tries = 61000, 1 << 16, 8
	for range tries {
		out = append(out, netip.AddrPortFrom(a, uint16(first+rand.N(end-first))))
	}
	return out
}

// connectUDP connects a socket, and only then marks it for the rules: a socket that is bound and
// not connected would receive the datagrams of others.
func connectUDP(fd int, to netip.AddrPort) error {
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, own.level, own.name, own.value)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// addrPort converts the address of a socket. It takes those of package syscall, because package
// unix needs another system call for each.
func addrPort(s syscall.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *syscall.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	default:
		return netip.AddrPort{}
	}
}

// originalDestination decodes a sockaddr of either family; anything else is the zero value.
func originalDestination(raw []byte) netip.AddrPort {
	var at []byte
	switch len(raw) {
	case unix.SizeofSockaddrInet4:
		at = raw[4:8]
	case unix.SizeofSockaddrInet6:
		at = raw[8:24]
	default:
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(at)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(raw[2:]))
}

package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

const (
	firstPort = 10270 // of the listeners, if it is free
	lastPort  = 10370
	backlog   = 4096
	// keepAlive is after which time of silence a TCP peer is asked whether it is
	// still there.
	keepAlive = 5 * time.Minute
)

// loopback are the addresses of the listeners, so that nobody gets there without rules.
var loopback = [...]netip.Addr{proxy.IPv4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), proxy.IPv6: netip.IPv6Loopback()}

// option is a socket option with its number in each family.
type option struct{ v4, v6 int }

var (
	transparent = option{unix.IP_TRANSPARENT, unix.IPV6_TRANSPARENT}
	originalDst = option{unix.IP_RECVORIGDSTADDR, unix.IPV6_RECVORIGDSTADDR}
)

func (o option) set(fd int, f proxy.Family) error {
	if f == proxy.IPv6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, o.v6, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, o.v4, 1)
}

// switchOn switches options of level SOL_SOCKET on.
func switchOn(fd int, options ...int) (err error) {
	for _, o := range options {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, 1))
	}
	return err
}

// keepTCP has dead peers noticed and small writes sent at once. Accepted
// connections have it of their listener.
func keepTCP(fd int) error {
	return errors.Join(switchOn(fd, unix.SO_KEEPALIVE),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPIDLE, int(keepAlive.Seconds())),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_NODELAY, 1))
}

// open makes a socket whose packets rules leave alone.
func (s *server) open(p proxy.Protocol, f proxy.Family) (int, error) {
	domain, kind := unix.AF_INET, unix.SOCK_STREAM
	if f == proxy.IPv6 {
		domain = unix.AF_INET6
	}
	if p == proxy.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := s.socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, ownMark); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// listen opens what rules lead connections to, for all workers: on the first
// port that is free for both protocols and all families.
func (s *server) listen() error {
	port := uint16(firstPort)
	for _, scope := range []proxy.Scope{proxy.ScopeCluster, proxy.ScopeLocal} {
		for _, masquerade := range []bool{false, true} {
			for {
				opened, err := s.listenOn(listener{Scope: scope, Masquerade: masquerade, Port: port})
				port++
				if err == nil {
					s.listeners = append(s.listeners, opened...)
					break
				}
				for _, l := range opened {
					err = errors.Join(err, unix.Close(l.fd))
				}
				if !errors.Is(err, unix.EADDRINUSE) || port > lastPort {
					return fmt.Errorf("listen on port %d: %w", port-1, err)
				}
			}
		}
	}
	return nil
}

// listenOn opens a listener of each protocol and family for each worker.
func (s *server) listenOn(like listener) (opened []*listener, err error) {
	for _, f := range s.families {
		for _, p := range []proxy.Protocol{proxy.TCP, proxy.UDP} {
			for range s.workers {
				l := like
				l.Protocol, l.Family = p, f
				if l.fd, err = s.open(p, f); err != nil {
					return opened, err
				}
				opened = append(opened, &l)
				if err := l.bind(); err != nil {
					return opened, err
				}
			}
		}
	}
	return opened, nil
}

// bind makes a listener's socket listen. The workers' sockets share the port,
// and the kernel has each client's connections come to the same one.
func (l *listener) bind() error {
	err := errors.Join(switchOn(l.fd, unix.SO_REUSEPORT), transparent.set(l.fd, l.Family))
	if l.Family == proxy.IPv6 {
		err = errors.Join(err, unix.SetsockoptInt(l.fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1))
	}
	if l.Protocol == proxy.UDP {
		err = errors.Join(err, originalDst.set(l.fd, l.Family))
	} else {
		err = errors.Join(err, keepTCP(l.fd))
	}
	if err != nil {
		return err
	}
	if err := unix.Bind(l.fd, sockaddr(netip.AddrPortFrom(loopback[l.Family], l.Port))); err != nil || l.Protocol == proxy.UDP {
		return err
	}
	return unix.Listen(l.fd, backlog)
}

// connect begins a connection to an endpoint, which sees the client's address,
// and its port unless that is taken, or else the node's.
func (s *server) connect(p proxy.Protocol, client netip.AddrPort, to proxy.Endpoint, masquerade bool) (fd int, err error) {
	hairpin := to.MayHairpin() && to.Addr.Addr() == client.Addr() // a client must not see its own address as the client's
	ports := []uint16{client.Port(), 0}
	if masquerade || hairpin {
		ports = ports[1:]
		client = netip.AddrPort{}
	}
	for _, port := range ports {
		if fd, err = s.open(p, proxy.FamilyOf(to.Addr.Addr())); err != nil {
			return -1, err
		}
		if err = prepare(fd, p, netip.AddrPortFrom(client.Addr(), port)); err == nil {
			err = unix.Connect(fd, sockaddr(to.Addr))
		}
		if err == nil || err == unix.EINPROGRESS {
			return fd, nil
		}
		_ = unix.Close(fd)
	}
	return -1, err
}

// prepare sets what a connection to an endpoint needs, and its source if there is one.
func prepare(fd int, p proxy.Protocol, source netip.AddrPort) error {
	if p == proxy.TCP {
		if err := keepTCP(fd); err != nil {
			return err
		}
	}
	if !source.Addr().IsValid() {
		return nil
	}
	err := transparent.set(fd, proxy.FamilyOf(source.Addr()))
	switch {
	case err != nil:
		return err
	case source.Port() == 0:
		err = unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	case p == proxy.TCP: // other connections of the client may have the same port
		err = switchOn(fd, unix.SO_REUSEADDR)
	}
	if err != nil {
		return err
	}
	return unix.Bind(fd, sockaddr(source))
}

// resetOnClose has a TCP peer told that the connection was cut off when it is closed.
func resetOnClose(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func addrPort(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	default:
		return netip.AddrPort{}
	}
}

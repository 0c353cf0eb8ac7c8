package userspace

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// OwnMark is the bit of the mark of packets and flows of the server.
const OwnMark = ownMark

// OpenSocketsIn makes a dataplane open its sockets through do, which calls a function in another
// network namespace.
func (d *Dataplane) OpenSocketsIn(do func(func() error) error) {
	open := d.server.socket
	d.server.socket = func(domain, kind, protocol int) (fd int, err error) {
		err = do(func() error {
			fd, err = open(domain, kind, protocol)
			return err
		})
		return fd, err
	}
}

// ReplaceRow replaces a row in the index only, or removes it, so that it differs from the rules.
func (d *Dataplane) ReplaceRow(key proxy.PortKey, row ...*proxy.ServicePort) {
	want := map[proxy.PortKey]*proxy.ServicePort{}
	for _, sp := range row {
		want[key] = sp
	}
	if remove := d.server.index.Update([]proxy.PortKey{key}, want); remove != nil {
		remove()
	}
}

// StopListening makes one TCP listener stop listening.
func (d *Dataplane) StopListening() {
	for _, l := range d.listeners {
		if l.Protocol == proxy.TCP {
			_ = unix.Shutdown(l.fd, unix.SHUT_RD)
			return
		}
	}
}

// Choose chooses an endpoint as for a new connection, and remembers it.
func (d *Dataplane) Choose(key proxy.PortKey, client netip.Addr) netip.AddrPort {
	e, _ := d.server.index.Get(key).Choose(client, proxy.ScopeCluster, nil)
	return e.Addr
}

// MetersUnlocked reports whether new connections can be counted without waiting.
func (d *Dataplane) MetersUnlocked() bool {
	free := d.server.meters.mu.TryLock()
	if free {
		d.server.meters.mu.Unlock()
	}
	return free
}

// UseSmallPipes gives the workers pipes of a single page, as the kernel gives them to a user with
// many pipes.
func (d *Dataplane) UseSmallPipes() error {
	for _, w := range d.server.workers {
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
			return err
		}
		w.do(func() { w.pipes = append(w.pipes, &pipe{fds[0], fds[1], 1}) })
	}
	return nil
}

// UpdateSubnets reads the node's subnets now, as the dataplane does once a second.
func (d *Dataplane) UpdateSubnets() { d.server.subnets.update() }

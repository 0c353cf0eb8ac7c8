package userspace

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// In has a dataplane open its sockets by way of do, which does something in
// another network namespace than that of the process.
func (d *Dataplane) In(do func(func() error) error) {
	open := d.server.socket
	d.server.socket = func(domain, kind, protocol int) (fd int, err error) {
		err = do(func() error {
			fd, err = open(domain, kind, protocol)
			return err
		})
		return fd, err
	}
}

// Misplace has the process find another row than the rules are for, or none.
func (d *Dataplane) Misplace(key proxy.PortKey, row ...*proxy.ServicePort) {
	want := map[proxy.PortKey]*proxy.ServicePort{}
	for _, sp := range row {
		want[key] = sp
	}
	if forget := d.server.index.Update([]proxy.PortKey{key}, want); forget != nil {
		forget()
	}
}

// Deafen has one socket of TCP listen no more.
func (d *Dataplane) Deafen() {
	for _, l := range d.listeners {
		if l.Protocol == proxy.TCP {
			_ = unix.Shutdown(l.fd, unix.SHUT_RD)
			return
		}
	}
}

// Choose chooses an endpoint as for a connection, and remembers it.
func (d *Dataplane) Choose(key proxy.PortKey, client netip.Addr) netip.AddrPort {
	e, _ := d.server.index.Get(key).Choose(client, proxy.ScopeCluster, nil)
	return e.Addr
}

// Meters reports whether connections can be counted: nobody holds them up.
func (d *Dataplane) Meters() bool {
	free := d.server.meters.mu.TryLock()
	if free {
		d.server.meters.mu.Unlock()
	}
	return free
}

// Narrow leaves the workers pipes of a single page, as the kernel gives them to a user
// who has many.
func (d *Dataplane) Narrow() error {
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

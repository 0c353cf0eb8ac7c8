package userspace

import (
	"context"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// Verify looks whether packets still come to the sockets of the process. Rows have
// nothing beside the rules.
func (d *Dataplane) Verify(_ context.Context, row proxy.PortKey) ([]proxy.Difference, error) {
	var is proxy.Inspected
	if row != (proxy.PortKey{}) {
		return nil, nil
	}
	for _, f := range d.server.families {
		if err := inspectRouting(f, &is); err != nil {
			return nil, err
		}
	}
	return is.Differences, nil
}

// inspectRouting looks whether packets to sockets are led to this host.
func inspectRouting(f proxy.Family, is *proxy.Inspected) error {
	leads, err := routing.Leads(f == proxy.IPv6)
	if err != nil {
		return err
	}
	if is.Add(1); !leads {
		is.Add(0, proxy.Difference{Object: "routing", Want: routing.Text(f == proxy.IPv6)})
	}
	return nil
}

// Inspect reads back the rules, what leads packets to the process, and what that
// has of the row. It asks the process which endpoint a client stays with.
func (d *Dataplane) Inspect(ctx context.Context, what proxy.Inspection) (proxy.Inspected, error) {
	is, err := d.Dataplane.Inspect(ctx, what)
	if err != nil {
		return is, err
	}
	if s := d.server.index.Of(what.Row); s != nil && is.RememberedUnknown != "" {
		is.RememberedUnknown, is.Remembered = "", s.Remembers(what.Client, what.List)
	}
	d.inspectRow(what.Row, &is)
	d.inspectListeners(what.Row.Protocol, &is)
	err = inspectRouting(what.Row.Family, &is)
	return is, err
}

// inspectRow compares the row that rules are for with the one that the process
// finds endpoints by.
func (d *Dataplane) inspectRow(key proxy.PortKey, is *proxy.Inspected) {
	row := d.Row(key)
	if row == nil {
		return
	}
	for _, f := range row.Frontends {
		differs := proxy.Difference{Object: "row of the process", Want: fmt.Sprintf("%v leads to %v", f.Addr, row)}
		s := d.server.index.Find(key.Protocol, f.Addr)
		if s != nil {
			differs.Have = fmt.Sprintf("it leads to %v", s.Row())
		}
		if is.Add(1); s == nil || s.Row() != row {
			is.Add(0, differs)
		}
	}
}

// inspectListeners looks whether the sockets of a protocol still take connections.
func (d *Dataplane) inspectListeners(p proxy.Protocol, is *proxy.Inspected) {
	for _, l := range d.opened {
		if p != 0 && l.Protocol != p {
			continue
		}
		if is.Add(1); !l.open() {
			is.Add(0, proxy.Difference{Object: "socket of the process", Want: fmt.Sprintf("it listens on %v port %d", l.Protocol, l.Port)})
		}
	}
}

// open reports whether a listener gets what rules lead to it.
func (l *listener) open() bool {
	at, err := syscall.Getsockname(l.fd)
	if err != nil || addrPort(at).Port() != l.Port {
		return false
	}
	accepts, err := unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && (l.Protocol == proxy.UDP || accepts == 1)
}

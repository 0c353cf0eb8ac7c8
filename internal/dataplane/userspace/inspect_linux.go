package userspace

import (
	"context"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice/internal/proxy"
)

// Verify checks that packets still reach the sockets of the process. Rows have no state outside of
// the rules and the process, so with a row it does nothing.
func (d *Dataplane) Verify(_ context.Context, row proxy.PortKey) ([]proxy.Difference, error) {
	if row != (proxy.PortKey{}) {
		return nil, nil
	}
	var is proxy.Inspected
	for _, f := range d.server.families {
		if err := inspectRouting(f, &is); err != nil {
			return nil, err
		}
	}
	return is.Differences, nil
}

// inspectRouting checks the policy routing that delivers marked packets to this host.
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

// Inspect compares the rules, the routing, the listeners and the index of the process with the row.
// The process itself knows which endpoint a client stays with.
func (d *Dataplane) Inspect(ctx context.Context, what proxy.Inspection) (proxy.Inspected, error) {
	is, err := d.Dataplane.Inspect(ctx, what)
	if err != nil {
		return is, err
	}
	if s := d.server.index.Get(what.Row); s != nil && is.RememberedUnknown != "" {
		is.RememberedUnknown, is.Remembered = "", s.RememberedEndpoint(what.Client, what.List)
	}
	d.inspectRow(what.Row, &is)
	d.inspectListeners(what.Row.Protocol, &is)
	err = inspectRouting(what.Row.Family, &is)
	return is, err
}

// inspectRow compares the row that the rules were written for with the one that the process chooses
// endpoints from.
func (d *Dataplane) inspectRow(key proxy.PortKey, is *proxy.Inspected) {
	row := d.Row(key)
	if row == nil {
		return
	}
	for _, f := range row.Frontends {
		differs := proxy.Difference{Object: "row in the daemon's memory", Want: fmt.Sprintf("%v belongs to %v", f.Addr, row)}
		s := d.server.index.Find(key.Protocol, f.Addr)
		if s != nil {
			differs.Have = fmt.Sprintf("it belongs to %v", s.Row())
		}
		if is.Add(1); s == nil || s.Row() != row {
			is.Add(0, differs)
		}
	}
}

// inspectListeners checks that the listeners of a protocol, or all if it is 0, still accept
// connections.
func (d *Dataplane) inspectListeners(p proxy.Protocol, is *proxy.Inspected) {
	for _, l := range d.listeners {
		if p != 0 && l.Protocol != p {
			continue
		}
		if is.Add(1); !l.open() {
			is.Add(0, proxy.Difference{Object: "socket of the daemon", Want: fmt.Sprintf("it listens on %v port %d", l.Protocol, l.Port)})
		}
	}
}

// open reports whether a listener receives what rules redirect to it.
func (l *listener) open() bool {
	at, err := syscall.Getsockname(l.fd)
	if err != nil || addrPort(at).Port() != l.Port {
		return false
	}
	accepts, err := unix.GetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && (l.Protocol == proxy.UDP || accepts == 1)
}

package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Conn asks the kernel. Its zero value is ready, and works in the network
// namespace of the thread that calls a method.
type Conn struct{}

// listTries bounds how often a listing is taken again that a change broke.
const listTries = 5

// List returns the addresses that can be bound now, without those that IPv6
// still checks, or has found, to be another host's.
func (Conn) List() ([]netip.Addr, error) {
	var list []netlink.Addr
	var err error = netlink.ErrDumpInterrupted
	for try := 0; try < listTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		list, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		if ok && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}

// Watch returns a channel that has a token whenever addresses may have changed
// since the last one was taken. It is closed when ctx ends, or earlier when the
// kernel had more to tell than it could.
func (Conn) Watch(ctx context.Context) (<-chan struct{}, error) {
	updates := make(chan netlink.AddrUpdate)
	ctx, stop := context.WithCancel(ctx)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		stop()
		return nil, fmt.Errorf("watch addresses: %w", err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer close(changed)
		defer stop() // The library holds the socket until then.
		for range updates {
			notify(changed)
		}
	}()
	return changed, nil
}

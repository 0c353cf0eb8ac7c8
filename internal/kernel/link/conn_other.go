//go:build !linux

package link

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Conn asks the operating system.
type Conn struct{}

// lookAgain is how often to look for changes, which are not announced.
const lookAgain = 30 * time.Second

// List returns the addresses of all interfaces.
func (Conn) List() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	out := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p.Addr().WithZone("").Unmap())
		}
	}
	return out, nil
}

// Watch returns a channel that has a token whenever it is time to look again. It
// is closed when ctx ends.
func (Conn) Watch(ctx context.Context) (<-chan struct{}, error) {
	changed := make(chan struct{}, 1)
	go func() {
		defer close(changed)
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(lookAgain):
				notify(changed)
			}
		}
	}()
	return changed, nil
}

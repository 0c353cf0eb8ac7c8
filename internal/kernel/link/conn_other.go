//go:build !linux

package link

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Conn queries the operating system.
type Conn struct{}

// pollInterval is how often Watch sends a token, because changes are not announced.
const pollInterval = 30 * time.Second

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

// LocalPrefixes returns the addresses of all interfaces as prefixes.
func (c Conn) LocalPrefixes() ([]netip.Prefix, error) {
	addrs, err := c.List()
	return hostPrefixes(addrs), err
}

// Local returns the name of the interface that has an address, or "" if none has.
func (Conn) Local(a netip.Addr) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			return "", fmt.Errorf("list addresses of interface %s: %w", i.Name, err)
		}
		for _, on := range addrs {
			if p, err := netip.ParsePrefix(on.String()); err == nil && p.Addr().WithZone("").Unmap() == a {
				return i.Name, nil
			}
		}
	}
	return "", nil
}

// Watch returns a channel that gets a token each pollInterval. It is closed when ctx ends.
func (Conn) Watch(ctx context.Context) (<-chan struct{}, error) {
	changed := make(chan struct{}, 1)
	go func() {
		defer close(changed)
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(pollInterval):
				notify(changed)
			}
		}
	}()
	return changed, nil
}

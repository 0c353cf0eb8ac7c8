package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// cast is who must be there for a group: pods, and listeners.
type cast struct {
	pods      map[netip.Addr]string // pod address: node name
	listeners map[socket]bool
}

// socket is what somebody listens on.
type socket struct {
	protocol proxy.Protocol
	at       netip.AddrPort
}

func newCast() *cast { return &cast{pods: map[netip.Addr]string{}, listeners: map[socket]bool{}} }

// addWorld adds every endpoint of a world, those that must not be used
// included.
func (c *cast) addWorld(w *World) error {
	for _, s := range w.Slices {
		for _, e := range s.Endpoints {
			for _, ip := range append([]string{e.IP}, e.ExtraAddresses...) {
				if err := c.addEndpoint(s, ip, e.place()); err != nil {
					return fmt.Errorf("slice %s: %w", s.Name, err)
				}
			}
		}
	}
	return nil
}

func (c *cast) addEndpoint(s *Slice, ip, place string) error {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return err
	}
	if err := c.addPod(a, place); err != nil {
		return err
	}
	for _, p := range s.Ports {
		protocol, err := parseProtocol(p.Proto)
		if err != nil {
			return err
		}
		if p.Port != nil {
			c.listeners[socket{protocol, netip.AddrPortFrom(a, uint16(*p.Port))}] = true
		}
	}
	return nil
}

// addPod adds a pod unless the address is the node's own.
func (c *cast) addPod(a netip.Addr, place string) error {
	if slices.Contains(lab.Config{}.LocalAddrs(), a) {
		return nil
	}
	if at, ok := c.pods[a]; ok && at != place {
		return fmt.Errorf("%v is on %s and on %s", a, at, place)
	}
	c.pods[a] = place
	return nil
}

// addCase adds a case's client, and a listener on the very address the packet
// is sent to: it answers when nobody touched the packet.
func (c *cast) addCase(k *Case) error {
	c.listeners[socket{k.Proto.protocol(), k.to()}] = true
	switch {
	case k.From.onPod():
		return c.addPod(k.Src, nodeName)
	case k.From == FromRemotePod:
		return c.addPod(k.Src, "client-node")
	}
	return nil
}

// listen opens the listeners, each on the host that has its address.
func (s *stage) listen(sockets map[socket]bool) (stop func() error, err error) {
	var open []*traffic.Listener
	stop = func() error {
		var errs []error
		for _, l := range open {
			errs = append(errs, l.Close())
		}
		return errors.Join(errs...)
	}
	for k := range sockets {
		l, err := s.holder(k.at.Addr()).Listen(k.protocol, k.at)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		open = append(open, l)
	}
	return stop, nil
}

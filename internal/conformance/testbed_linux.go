package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/utils/ptr"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// testbed is a lab with a dataplane on its node. It is used for one group after
// another and carries over whatever the last one left in the kernel.
type testbed struct {
	d       Dataplane
	lab     *lab.Lab
	dp      proxy.Dataplane
	last    string                   // the group that was here before
	silence time.Duration            // how long nothing must be heard where nothing is expected
	where   map[netip.Addr]string    // pod address: node name
	pods    map[netip.Addr]*lab.Host // pod address: host
}

func newTestbed(ctx context.Context, d Dataplane) (*testbed, error) {
	l, err := lab.New(lab.Config{})
	if err != nil {
		return nil, err
	}
	b := &testbed{d: d, lab: l, silence: untilSilence, where: map[netip.Addr]string{}, pods: map[netip.Addr]*lab.Host{}}
	if err := b.open(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return b, nil
}

// onNode does something to the dataplane inside the node's namespace.
func (b *testbed) onNode(what string, do func() error) error {
	return b.lab.Node().Do(func() error {
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func (b *testbed) open(ctx context.Context) error {
	return b.onNode("open dataplane", func() (err error) {
		b.dp, err = b.d.Open(ctx)
		return err
	})
}

func (b *testbed) closeDataplane() error {
	return b.onNode("close dataplane", func() error { return b.dp.Close() })
}

func (b *testbed) close() error { return errors.Join(b.closeDataplane(), b.lab.Close()) }

func (b *testbed) sync(ctx context.Context, state *proxy.State) error {
	return b.onNode("sync", func() error { return proxytest.Sync(ctx, b.dp, state) })
}

func (b *testbed) apply(ctx context.Context, d *proxy.Delta) error {
	if d.Empty() {
		return nil
	}
	return b.onNode("apply", func() error { return proxytest.Apply(ctx, b.dp, d) })
}

// hosts is who must be there for a group: pods, and listeners.
type hosts struct {
	pods      map[netip.Addr]string // pod address: node name
	listeners map[socket]bool
}

// socket is what somebody listens on.
type socket struct {
	protocol proxy.Protocol
	at       netip.AddrPort
}

// addWorld adds every endpoint of a world, those that must not be used
// included.
func (h *hosts) addWorld(w *World) error {
	for _, s := range w.Slices {
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				a, err := netip.ParseAddr(text)
				if err == nil {
					err = h.addPod(a, cmp.Or(w.Places[a], ptr.Deref(e.NodeName, "elsewhere")))
				}
				if err != nil {
					return fmt.Errorf("slice %s: %w", s.Name, err)
				}
				for _, p := range s.Ports {
					if p.Port != nil {
						h.listeners[socket{protocols[*p.Protocol], netip.AddrPortFrom(a, uint16(*p.Port))}] = true
					}
				}
			}
		}
	}
	return nil
}

// addPod adds a pod unless the address is the node's own.
func (h *hosts) addPod(a netip.Addr, place string) error {
	if slices.Contains(lab.Config{}.LocalAddrs(), a) {
		return nil
	}
	if at, ok := h.pods[a]; ok && at != place {
		return fmt.Errorf("%v is on %s and on %s", a, at, place)
	}
	h.pods[a] = place
	return nil
}

// addCase adds a case's client, and a listener on the very address the packet
// is sent to: it answers when nobody touched the packet.
func (h *hosts) addCase(c *Case) error {
	h.listeners[socket{c.protocol(), c.to()}] = true
	switch {
	case c.From.onPod():
		return h.addPod(c.Src, nodeName)
	case c.From == FromRemotePod:
		return h.addPod(c.Src, "client-node")
	}
	return nil
}

// prepare makes the hosts that worlds and cases need, and no others, and lets
// them listen.
func (b *testbed) prepare(worlds []*World, cases []*Case) (stop func() error, err error) {
	h := &hosts{pods: map[netip.Addr]string{}, listeners: map[socket]bool{}}
	for _, w := range worlds {
		if err := h.addWorld(w); err != nil {
			return nil, err
		}
	}
	for _, c := range cases {
		if err := h.addCase(c); err != nil {
			return nil, fmt.Errorf("case %s: %w", c.ID, err)
		}
	}
	if err := b.place(h.pods); err != nil {
		return nil, err
	}
	var open []*traffic.Listener
	stop = func() error {
		var errs []error
		for _, l := range open {
			errs = append(errs, l.Close())
		}
		return errors.Join(errs...)
	}
	for s := range h.listeners {
		l, err := b.holder(s.at.Addr()).Listen(s.protocol, s.at)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		open = append(open, l)
	}
	return stop, nil
}

// outsideNode is the node of an endpoint that is in no cluster.
const outsideNode = "outside"

// place puts pods where they belong and takes those away that are not needed.
func (b *testbed) place(pods map[netip.Addr]string) error {
	if err := b.lab.Refresh(); err != nil {
		return err
	}
	for a, at := range b.where {
		if pods[a] == at {
			continue
		}
		var err error
		switch at {
		case nodeName:
			err = b.lab.RemovePod(b.pods[a])
		case outsideNode:
		default:
			err = b.lab.RemoveRemotePod(b.pods[a], a)
		}
		if err != nil {
			return fmt.Errorf("remove pod %v: %w", a, err)
		}
		delete(b.where, a)
		delete(b.pods, a)
	}
	for a, at := range pods {
		if b.pods[a] != nil {
			continue
		}
		h, err := b.lab.Outside(), error(nil)
		switch at {
		case nodeName:
			h, err = b.lab.AddPod(a.String(), a)
		case outsideNode:
		default:
			h, err = b.lab.AddRemotePod(at, a)
		}
		if err != nil {
			return fmt.Errorf("place pod %v: %w", a, err)
		}
		b.where[a], b.pods[a] = at, h
	}
	return nil
}

// client returns the host that a case's packet comes from.
func (b *testbed) client(c *Case) *lab.Host {
	switch {
	case c.From.onNode():
		return b.lab.Node()
	case c.From.outside():
		return b.lab.Outside()
	default:
		return b.pods[c.Src]
	}
}

// holder returns the host that an address belongs to by ordinary routing.
func (b *testbed) holder(a netip.Addr) *lab.Host {
	switch {
	case b.pods[a] != nil:
		return b.pods[a]
	case b.lab.Node().Has(a):
		return b.lab.Node()
	default:
		return b.lab.Outside()
	}
}

// check checks one observation of a case. An endpoint cannot always see that a
// client is masqueraded: what stays on the node need not pass the place where
// that happens, and what leaves by the link whose address it already has looks
// the same afterwards.
func (b *testbed) check(c *Case, want Expect, seen traffic.Seen) error {
	cfg := lab.Config{}.Default()
	return want.judge(c, seen, func(endpoint netip.AddrPort) bool {
		switch b.where[endpoint.Addr()] {
		case "":
			return false
		case nodeName:
			return !slices.Contains(cfg.BridgeAddrs, c.Src)
		case outsideNode:
			return !slices.Contains(cfg.NodeAddrs, c.Src)
		default:
			return !slices.Contains(cfg.TransitAddrs, c.Src)
		}
	})
}

func flow(c *Case, patience time.Duration) traffic.Flow {
	return traffic.Flow{Protocol: c.protocol(), Src: c.Src, Dst: c.to(), Patience: patience}
}

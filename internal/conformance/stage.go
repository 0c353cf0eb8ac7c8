package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// Dataplane is a dataplane to be put under the table.
type Dataplane struct {
	Mode string // the table's column: nftables or iptables

	// Open is called inside the node's network namespace, and so is every
	// method of what it returns. Several may be open at once, each in a
	// namespace of its own.
	Open func(context.Context) (proxy.Dataplane, error)
}

// stage is a lab with a dataplane on its node. It is used for one group after
// another and carries over whatever the last one left in the kernel.
type stage struct {
	d       Dataplane
	lab     *lab.Lab
	dp      proxy.Dataplane
	last    string                   // the group that was here before
	silence time.Duration            // how long nothing must be heard where nothing is expected
	where   map[netip.Addr]string    // pod address: node name
	hosts   map[netip.Addr]*lab.Host // pod address: host
}

func newStage(ctx context.Context, d Dataplane) (*stage, error) {
	l, err := lab.New(lab.Config{})
	if err != nil {
		return nil, err
	}
	s := &stage{d: d, lab: l, silence: untilSilence, where: map[netip.Addr]string{}, hosts: map[netip.Addr]*lab.Host{}}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

func (s *stage) open(ctx context.Context) error {
	return s.lab.Node().Do(func() error {
		var err error
		if s.dp, err = s.d.Open(ctx); err != nil {
			return fmt.Errorf("open dataplane: %w", err)
		}
		return nil
	})
}

func (s *stage) closeDataplane() error {
	return s.lab.Node().Do(func() error {
		if err := s.dp.Close(); err != nil {
			return fmt.Errorf("close dataplane: %w", err)
		}
		return nil
	})
}

func (s *stage) close() error { return errors.Join(s.closeDataplane(), s.lab.Close()) }

// reopen is a restart of the proxy.
func (s *stage) reopen(ctx context.Context) error {
	if err := s.closeDataplane(); err != nil {
		return err
	}
	return s.open(ctx)
}

func (s *stage) sync(ctx context.Context, state *proxy.State) error {
	return s.lab.Node().Do(func() error {
		if err := proxytest.Sync(ctx, s.dp, state); err != nil {
			return fmt.Errorf("sync: %w", err)
		}
		return nil
	})
}

func (s *stage) apply(ctx context.Context, d *proxy.Delta) error {
	if d.Empty() {
		return nil
	}
	return s.lab.Node().Do(func() error {
		if err := proxytest.Apply(ctx, s.dp, d); err != nil {
			return fmt.Errorf("apply: %w", err)
		}
		return nil
	})
}

// outsideNode is the node of an endpoint that is in no cluster.
const outsideNode = "outside"

// settle puts pods where they belong and takes those away that are not needed.
func (s *stage) settle(pods map[netip.Addr]string) error {
	if err := s.lab.Refresh(); err != nil {
		return err
	}
	for a, at := range s.where {
		if pods[a] != at {
			if err := s.evict(a, at); err != nil {
				return fmt.Errorf("remove pod %v: %w", a, err)
			}
		}
	}
	for a, at := range pods {
		if _, settled := s.where[a]; settled {
			continue
		}
		var h *lab.Host
		var err error
		switch at {
		case nodeName:
			h, err = s.lab.AddPod(a.String(), a)
		case outsideNode:
			h = s.lab.Outside()
		default:
			h, err = s.lab.AddRemotePod(at, a)
		}
		if err != nil {
			return fmt.Errorf("place pod %v: %w", a, err)
		}
		s.where[a], s.hosts[a] = at, h
	}
	return nil
}

func (s *stage) evict(a netip.Addr, at string) error {
	h := s.hosts[a]
	delete(s.where, a)
	delete(s.hosts, a)
	switch at {
	case nodeName:
		return s.lab.RemovePod(h)
	case outsideNode:
		return nil
	default:
		return s.lab.RemoveRemotePod(h, a)
	}
}

// speaker returns the host that a case's packet comes from.
func (s *stage) speaker(c *Case) *lab.Host {
	switch {
	case c.From.onNode():
		return s.lab.Node()
	case c.From.outside():
		return s.lab.Outside()
	default:
		return s.hosts[c.Src]
	}
}

// holder returns the host that an address belongs to by ordinary routing.
func (s *stage) holder(a netip.Addr) *lab.Host {
	if h := s.hosts[a]; h != nil {
		return h
	}
	if s.lab.Node().Has(a) {
		return s.lab.Node()
	}
	return s.lab.Outside()
}

// visible reports whether an endpoint could see that a case's client is
// masqueraded. What stays on the node need not pass the place where that
// happens, and what leaves by the link whose address it already has looks the
// same afterwards.
func (s *stage) visible(c *Case, endpoint netip.AddrPort) bool {
	cfg := lab.Config{}.Default()
	var links []netip.Addr
	switch s.where[endpoint.Addr()] {
	case "":
		return false
	case nodeName:
		links = cfg.BridgeAddrs
	case outsideNode:
		links = cfg.NodeAddrs
	default:
		links = cfg.TransitAddrs
	}
	for _, a := range links {
		if a == c.Src {
			return false
		}
	}
	return true
}

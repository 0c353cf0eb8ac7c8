//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice/internal/conformance/lab"
	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// What the manifests do not say about the demo's network.
const (
	clusterCIDR = "10.244.0.0/16"
	bridgeAddr  = "10.244.0.1"
	outsider    = "203.0.113.9"
	arrivalAddr = "10.244.1.14" // the pod that is added, on another node
	arrivalNode = "node-2"
)

const (
	// patience is how long a request may take. Nothing here is slow, so what
	// takes longer has been lost.
	patience = time.Second
	// impatience takes its place as long as the daemon is not ready.
	impatience = 50 * time.Millisecond
	// beat is how often every client sends its requests.
	beat = 10 * time.Millisecond
	// perBeat is about how many requests a Service gets in each beat.
	perBeat = 3
)

// stage is the network: the node, the pods that answer and the clients.
type stage struct {
	lab       *lab.Lab
	listeners []*traffic.Listener
	clients   []client
}

// client is a place where requests come from.
type client struct {
	origin proxy.Origin
	host   *lab.Host
	src    netip.Addr
}

// newStage makes the network of a catalog, and the pod that is added later.
func newStage(c catalog) (_ *stage, err error) {
	l, err := lab.New(lab.Config{
		NodeAddrs:   c.nodeIPs,
		BridgeAddrs: []netip.Addr{netip.MustParseAddr(bridgeAddr)},
	})
	if err != nil {
		return nil, fmt.Errorf("make network namespaces (needs root with all capabilities, "+
			"and a kernel with namespaces, veth links, bridges and IPv6): %w", err)
	}
	s := &stage{lab: l}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	later := pod{addr: netip.MustParseAddr(arrivalAddr), ports: c.ports()}
	var inside client
	for _, p := range slices.Concat(c.pods, []pod{later}) {
		h, err := s.add(p)
		if err != nil {
			return nil, err
		}
		if p.here && inside.host == nil {
			inside = client{proxy.OurPod, h, p.addr}
		}
	}
	if inside.host == nil {
		return nil, fmt.Errorf("no endpoint in the manifests is on the node %s", c.node)
	}
	s.clients = []client{
		inside,
		{proxy.ThisNode, l.Node(), c.nodeIPs[0]},
		{proxy.Elsewhere, l.Outside(), netip.MustParseAddr(outsider)},
	}
	return s, nil
}

// add makes a pod that answers on its ports.
func (s *stage) add(p pod) (*lab.Host, error) {
	var h *lab.Host
	var err error
	if p.here {
		h, err = s.lab.AddPod(p.addr.String(), p.addr)
	} else {
		h, err = s.lab.AddRemotePod(arrivalNode, p.addr)
	}
	if err != nil {
		return nil, err
	}
	for _, port := range p.ports {
		// It answers until the end, so that a request to a pod that was taken
		// away does not go unnoticed.
		ln, err := h.Listen(proxy.TCP, netip.AddrPortFrom(p.addr, port))
		if err != nil {
			return nil, err
		}
		s.listeners = append(s.listeners, ln)
	}
	return h, nil
}

// close removes the network. A socket would keep its namespace alive.
func (s *stage) close() error {
	var errs []error
	for _, ln := range s.listeners {
		errs = append(errs, ln.Close())
	}
	if err := errors.Join(append(errs, s.lab.Close())...); err != nil {
		return fmt.Errorf("remove network namespaces: %w", err)
	}
	return nil
}

// hit is one finished request.
type hit struct {
	service string
	client  netip.Addr // who sent it
	sent    time.Time  // not after it was sent
	done    time.Time  // not before it was answered
	seen    traffic.Seen
}

// round is what a client sends at each beat.
type round struct {
	client   client
	services []string // of each flow
	flows    []traffic.Flow
}

// rounds says who sends what.
func (s *stage) rounds(c catalog, patience time.Duration) []round {
	var out []round
	for _, cl := range s.clients {
		r := round{client: cl}
		for _, svc := range c.services {
			for _, o := range svc.clients {
				if o == cl.origin {
					r.add(svc, patience)
				}
			}
		}
		out = append(out, r)
	}
	return out
}

// add adds the client's share of the requests to a Service.
func (r *round) add(svc service, patience time.Duration) {
	n := (perBeat + len(svc.clients) - 1) / len(svc.clients)
	if len(svc.endpoints) == 0 {
		n = 1 // a refusal looks like any other
	}
	for range n {
		r.services = append(r.services, svc.name)
		r.flows = append(r.flows, traffic.Flow{Protocol: proxy.TCP, Src: r.client.src, Dst: svc.addr, Patience: patience})
	}
}

// send sends a round once.
func (r round) send(ctx context.Context) ([]hit, error) {
	sent := time.Now()
	seen, err := r.client.host.Probe(ctx, r.flows)
	if err != nil {
		return nil, err
	}
	done := time.Now()
	hits := make([]hit, len(seen))
	for i := range seen {
		hits[i] = hit{service: r.services[i], client: r.client.src, sent: sent, done: done, seen: seen[i]}
	}
	return hits, nil
}

// run sends a round at each beat until ctx ends.
func (r round) run(ctx context.Context, take func([]hit)) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		hits, err := r.send(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("send requests: %w", err)
		}
		take(hits)
	}
}

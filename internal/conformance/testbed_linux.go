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

// testbed is a lab with a dataplane on its node. Groups run on it one after another, each starting
// with what the previous one left in the kernel.
type testbed struct {
	d              Dataplane
	lab            *lab.Lab
	bridged        bool // the pods of the node share a bridge
	dp             proxy.Dataplane
	daemon         Daemon        // instead of dp; nil means none
	stopRunner     func() error  // stops dp if it is a proxy.Runner
	runnerDone     chan struct{} // closed when Run has returned; nil if dp is no Runner
	lastGroup      string        // the previous group
	dropTimeout    time.Duration // how long to wait where silence is expected
	pods           map[netip.Addr]pod
	listeners      []*traffic.Listener
	counters       *counters
	churn          Churn                               // statistics of the daemon's histories
	sentTo         map[affinityClient][]netip.AddrPort // all endpoints that a client has reached
	warmUpTimedOut bool                                // warmUp never saw the expected translation
}

// pod is the location of a pod.
type pod struct {
	node string
	host *lab.Host
}

func (s *scheduler) newTestbed(ctx context.Context) (*testbed, error) {
	cgroup, err := s.addCgroup()
	if err != nil {
		return nil, err
	}
	l, err := lab.New(lab.Config{Cgroup: cgroup, Bridged: s.bridged, BridgeNetfilter: s.bridged && !s.d.Relays})
	if err != nil {
		return nil, err
	}
	b := &testbed{d: s.d, lab: l, bridged: s.bridged, dropTimeout: silenceTimeout, pods: map[netip.Addr]pod{}, counters: &s.counters, sentTo: map[affinityClient][]netip.AddrPort{}}
	if err := b.openDataplane(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return b, nil
}

// onNode calls do inside the node's namespace; what describes it in errors.
func (b *testbed) onNode(what string, do func() error) error {
	return b.lab.Node().Do(func() error { return wrap(what, do()) })
}

// openDataplane opens the dataplane or starts the daemon, and starts Run if the dataplane is a
// Runner.
func (b *testbed) openDataplane(ctx context.Context) error {
	b.stopRunner, b.runnerDone = func() error { return nil }, nil
	if b.d.Daemon != nil {
		d, err := b.d.Daemon(b.lab.Node())
		b.daemon = d
		return err
	}
	err := b.onNode("open dataplane", func() (err error) {
		if b.d.Sockets != nil {
			b.dp, err = b.d.Sockets.Open(ctx, b.lab.Node().Cgroup)
		} else {
			b.dp, err = b.d.Open(ctx)
		}
		return err
	})
	if r, ok := b.dp.(proxy.Runner); ok && err == nil {
		ctx, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		var result error // of Run, once runnerDone is closed
		go func() {
			defer close(ended)
			result = r.Run(ctx)
		}()
		b.runnerDone = ended
		b.stopRunner = func() error {
			stop()
			<-ended
			return wrap("run dataplane", result)
		}
	}
	return err
}

func (b *testbed) closeDataplane() error {
	if b.daemon != nil {
		return b.daemon.Close()
	}
	return errors.Join(b.stopRunner(), b.onNode("close dataplane", func() error { return b.dp.Close() }))
}

// handOverTimeout is how long a dataplane may take to notice that another one took over.
const handOverTimeout = 20 * time.Second

// reopen replaces the dataplane. One that hands over stays open until the new one has taken over,
// and its Run must then return an error; others are closed first.
func (b *testbed) reopen(ctx context.Context, state *proxy.State) error {
	if !b.d.HandsOver {
		return errors.Join(b.closeDataplane(), b.openDataplane(ctx), b.sync(ctx, state))
	}
	former := *b
	if err := errors.Join(b.openDataplane(ctx), b.sync(ctx, state)); err != nil {
		return err
	}
	select {
	case <-former.runnerDone:
	case <-time.After(handOverTimeout):
	}
	if former.stopRunner() == nil {
		return errors.New("the former dataplane returned no error from Run after another one took over")
	}
	return former.onNode("close dataplane", former.dp.Close)
}

func (b *testbed) close() error {
	return errors.Join(b.closeDataplane(), b.stopListening(), b.lab.Close())
}

func (b *testbed) stopListening() (err error) {
	for _, l := range b.listeners {
		err = errors.Join(err, l.Close())
	}
	b.listeners = nil
	return err
}

func (b *testbed) sync(ctx context.Context, state *proxy.State) error {
	return b.onNode("sync", func() error { return b.ignoreExpectedRefusals(proxytest.Sync(ctx, b.dp, state)) })
}

// ignoreExpectedRefusals returns nil if the error is only the refusal of rows whose protocol the
// mode does not support.
func (b *testbed) ignoreExpectedRefusals(err error) error {
	refused, ok := errors.AsType[*proxytest.RefusedError](err)
	if !ok {
		return err
	}
	for key := range refused.Rows {
		if b.d.Refuses[key.Protocol] == "" {
			return err
		}
	}
	return nil
}

func (b *testbed) apply(ctx context.Context, d *proxy.Delta) error {
	if d.Empty() {
		return nil
	}
	return b.onNode("apply", func() error { return b.ignoreExpectedRefusals(proxytest.Apply(ctx, b.dp, d)) })
}

// hosts is what a group needs: pods and listeners.
type hosts struct {
	nodes     map[netip.Addr]string // by pod
	listeners map[listenAddr]bool
}

// listenAddr is where a host listens.
type listenAddr struct {
	protocol proxy.Protocol
	at       netip.AddrPort
	inside   netip.Addr // if valid, the pod that listens, on its loopback address
}

// addWorld adds every endpoint of a world, including those that must not be used.
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
						at := netip.AddrPortFrom(a, uint16(*p.Port))
						h.listeners[listenAddr{protocol: protocols[ptr.Deref(p.Protocol, "")], at: at}] = true
					}
				}
			}
		}
	}
	return nil
}

// addPod adds a pod, unless the address is the node's own.
func (h *hosts) addPod(a netip.Addr, node string) error {
	if slices.Contains(lab.Config{}.LocalAddrs(), a) {
		return nil
	}
	if at, ok := h.nodes[a]; ok && at != node {
		return fmt.Errorf("%v is on %s and on %s", a, at, node)
	}
	h.nodes[a] = node
	return nil
}

// addCase adds the client of a case, and a listener on the address that the packet is sent to,
// which answers if the packet is left untouched.
func (h *hosts) addCase(c *Case) error {
	s := listenAddr{protocol: c.protocol(), at: c.to()}
	if c.From == FromInside {
		s.inside = c.clientAddr()
	}
	h.listeners[s] = true
	switch clients[c.From].link {
	case lab.Bridge:
		return h.addPod(c.clientAddr(), nodeName)
	case lab.Transit:
		return h.addPod(c.Src, "client-node")
	}
	return nil
}

// prepare creates exactly the hosts that worlds and cases need, and listens until the next call.
func (b *testbed) prepare(worlds []*World, cases []*Case) error {
	err := b.stopListening()
	h := &hosts{map[netip.Addr]string{}, map[listenAddr]bool{}}
	for _, w := range worlds {
		err = errors.Join(err, h.addWorld(w))
	}
	for _, c := range cases {
		err = errors.Join(err, wrap("case "+c.ID, h.addCase(c)))
	}
	if err != nil {
		return err
	}
	if err := b.placePods(h.nodes); err != nil {
		return err
	}
	for s := range h.listeners {
		at := s.at.Addr()
		if s.inside.IsValid() {
			at = s.inside
		}
		l, err := b.hostOf(at).Listen(s.protocol, s.at)
		if err != nil {
			return err
		}
		b.listeners = append(b.listeners, l)
	}
	return nil
}

// placePods adds the missing pods and removes those that are not needed.
func (b *testbed) placePods(nodes map[netip.Addr]string) error {
	if err := b.lab.Refresh(); err != nil {
		return err
	}
	for a, p := range b.pods {
		if nodes[a] == p.node {
			continue
		}
		delete(b.pods, a)
		if p.node != outsideNode {
			if err := b.lab.RemovePod(p.host); err != nil {
				return fmt.Errorf("remove pod %v: %w", a, err)
			}
		}
	}
	for a, node := range nodes {
		if b.pods[a].host != nil {
			continue
		}
		h, err := b.addPod(a, node)
		if err != nil {
			return fmt.Errorf("place pod %v: %w", a, err)
		}
		b.pods[a] = pod{node, h}
	}
	return nil
}

// outsideNode is the nodeName of an endpoint outside of the cluster.
const outsideNode = "outside"

func (b *testbed) addPod(a netip.Addr, node string) (*lab.Host, error) {
	switch node {
	case nodeName:
		return b.lab.AddPod(a.String(), a)
	case outsideNode:
		return b.lab.Outside(), nil
	default:
		return b.lab.AddRemotePod(a.String(), a)
	}
}

// clientHost returns the host that sends the packet of a case.
func (b *testbed) clientHost(c *Case) *lab.Host {
	switch clients[c.From].link {
	case "":
		return b.lab.Node()
	case lab.Uplink:
		return b.lab.Outside()
	default:
		return b.pods[c.clientAddr()].host
	}
}

// hostOf returns the host that packets to an address reach by ordinary routing.
func (b *testbed) hostOf(a netip.Addr) *lab.Host {
	switch {
	case b.pods[a].host != nil:
		return b.pods[a].host
	case slices.Contains(b.lab.Node().Addrs, a):
		return b.lab.Node()
	default:
		return b.lab.Outside()
	}
}

// masqueradeVisible reports whether an endpoint can see that a client is masqueraded. Traffic
// within the node need not pass POSTROUTING, and a client that already has the address of the
// outgoing link looks the same either way.
func (b *testbed) masqueradeVisible(client netip.Addr, endpoint netip.AddrPort) bool {
	cfg := lab.Config{}.Default()
	pod, known := b.pods[endpoint.Addr()]
	out := cfg.TransitAddrs
	switch pod.node {
	case nodeName:
		out = cfg.BridgeAddrs
	case outsideNode:
		out = cfg.NodeAddrs
	}
	return known && !slices.Contains(out, client)
}

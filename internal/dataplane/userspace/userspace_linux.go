package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/nftables"
	"sluice/internal/proxy"
)

// Bits of the packet mark.
const (
	socketMark = 1 << 12 // a socket of this host takes the packet
	ownMark    = 1 << 13 // the packet is the server's own
)

// Dataplane carries connections itself. Rules decide about policy and lead them to it.
type Dataplane struct {
	*nftables.Dataplane
	server    *server
	sockets   *nftables.Sockets
	forget    []func()          // once rules lead there no more
	serving   bool              // listeners are open
	listening chan net.Listener // for a successor
}

var (
	_ proxy.Dataplane = (*Dataplane)(nil)
	_ proxy.Runner    = (*Dataplane)(nil)
	_ proxy.Leaver    = (*Dataplane)(nil)
)

// Open connects to the kernel. Nothing is listened to before the first Sync.
func Open(ctx context.Context, s Settings) (*Dataplane, error) {
	if r := s.Relay; r.DialTimeout <= 0 || r.UDPTimeout <= 0 || r.Retries < 0 {
		return nil, fmt.Errorf("mode userspace: time-outs must be longer than 0 and retries not negative: %+v", r)
	}
	sockets := &nftables.Sockets{Mark: socketMark, Own: ownMark, NAT: true}
	rules, err := nftables.OpenOverlay(ctx, s, overlay(sockets))
	if err != nil {
		return nil, err
	}
	srv, err := newServer(s.Relay, s.Served(), min(runtime.GOMAXPROCS(0), maxWorkers))
	if err != nil {
		return nil, errors.Join(err, rules.Close())
	}
	return &Dataplane{Dataplane: rules, server: srv, sockets: sockets, listening: make(chan net.Listener, 1)}, nil
}

// maxWorkers bounds the threads that serve; each has listeners of its own.
const maxWorkers = 16

// errSCTP says why a row is refused.
var errSCTP = fmt.Errorf("mode userspace cannot serve SCTP, choose another --proxy-mode: %w", errors.ErrUnsupported)

// Sync makes rows found, opens the listeners or takes them over, and then has
// rules lead there.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	keys := slices.Collect(maps.Keys(want.Rows))
	served, refused := serve(keys, want)
	own := *want
	own.Rows = map[proxy.PortKey]*proxy.ServicePort{}
	for _, k := range served {
		own.Rows[k] = want.Rows[k]
	}
	d.forget = append(d.forget, d.server.index.update(append(d.server.index.keys(), served...), own.Rows))
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	more, err := d.Dataplane.Sync(ctx, &own)
	return d.finish(refused, more, err)
}

// Apply makes changed rows found, and has rules lead to them.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	served, refused := serve(changed.Rows, want)
	d.forget = append(d.forget, d.server.index.update(served, want.Rows))
	own := *changed
	own.Rows = served
	more, err := d.Dataplane.Apply(ctx, want, &own)
	return d.finish(refused, more, err)
}

// serve returns the rows that can be served, and refuses the others.
func serve(keys []proxy.PortKey, want *proxy.State) (served []proxy.PortKey, refused proxy.Refused) {
	refused = proxy.Refused{}
	for _, k := range keys {
		switch {
		case k.Protocol != proxy.SCTP:
			served = append(served, k)
		case want.Rows[k] != nil:
			refused[k] = errSCTP
		}
	}
	return served, refused
}

// finish forgets what no rule leads to any more.
func (d *Dataplane) finish(refused, more proxy.Refused, err error) (proxy.Refused, error) {
	maps.Copy(refused, more)
	if err == nil {
		for _, forget := range d.forget {
			forget()
		}
		d.forget = nil
	}
	return refused, err
}

// begin sees to it that what rules lead to is there.
func (d *Dataplane) begin(ctx context.Context) error {
	for _, f := range d.server.families {
		if err := routingOf(f).ensure(); err != nil {
			return err
		}
	}
	if d.serving {
		return nil
	}
	taken, err := d.server.takeOver()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Connections of the former daemon are lost")
	}
	if !taken {
		if err := d.server.listen(); err != nil {
			return err
		}
	}
	for _, l := range d.server.listeners {
		masquerade := 0
		if l.Masquerade {
			masquerade = 1
		}
		d.sockets.Ports[l.Scope][masquerade] = l.Port
	}
	d.server.serve()
	d.serving = true
	l, err := listenForSuccessor()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Open connections will not survive a restart")
		return nil
	}
	d.listening <- l
	return nil
}

// errTakenOver ends a daemon that another one replaced.
var errTakenOver = errors.New("another daemon took over the connections")

// Run serves connections until ctx ends. Then it goes on until a successor has
// them, or no TCP connection is open, or it takes too long.
func (d *Dataplane) Run(ctx context.Context) error {
	s := d.server
	s.log = klog.FromContext(ctx)
	var workers, beside sync.WaitGroup
	for _, w := range s.workers {
		workers.Go(w.run)
	}
	stop := sync.OnceFunc(func() {
		for _, w := range s.workers {
			w.do(nil)
		}
		workers.Wait()
	})
	succeeded := make(chan struct{})
	var l net.Listener
	for running := true; running; {
		select {
		case l = <-d.listening:
			beside.Go(func() {
				if s.awaitSuccessor(l, stop) {
					close(succeeded)
				}
			})
			continue
		case <-succeeded:
		case <-ctx.Done():
			s.drained(succeeded)
		}
		running = false
	}
	if l != nil {
		_ = l.Close()
	}
	beside.Wait()
	stop()
	s.close()
	if ctx.Err() == nil {
		return errTakenOver
	}
	return nil
}

// Leave lets the rules give way to another proxy, unless a mode of ours has taken
// new connections from them already.
func (d *Dataplane) Leave(ctx context.Context) error {
	ours, err := d.Complete(ctx)
	if err != nil || !ours {
		return err
	}
	return d.Dataplane.Leave(ctx)
}

// Metrics returns what the server and the rules count.
func (d *Dataplane) Metrics(ctx context.Context) []proxy.Metric {
	return append(d.Dataplane.Metrics(ctx), d.server.metrics()...)
}

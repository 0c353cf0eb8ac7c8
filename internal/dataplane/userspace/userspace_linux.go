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

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/link"
	"sluice/internal/proxy"
)

// maxWorkers bounds the threads that serve; each has listeners of its own.
const maxWorkers = 16

// threads returns how many of them there are: one for two processors. What the kernel does
// for clients and endpoints takes as much time again, and a thread that is busy sees
// several events at once, where two would be woken for each.
func threads() int { return min(max(1, runtime.GOMAXPROCS(0)/2), maxWorkers) }

var (
	errSCTP      = fmt.Errorf("mode userspace cannot serve SCTP, choose another --proxy-mode: %w", errors.ErrUnsupported)
	errTakenOver = errors.New("another daemon took over the connections")
)

// Dataplane carries connections itself. Rules decide about policy and lead them to it.
type Dataplane struct {
	*nftables.Dataplane
	server    *server
	sockets   *nftables.Sockets
	forget    []func()          // once rules lead there no more
	opened    []*listener       // those that rules lead to; nil: none yet
	listening chan net.Listener // for a successor
}

// Open connects to the kernel. Nothing is listened to before the first Sync.
func Open(ctx context.Context, s mode.Settings) (*Dataplane, error) {
	if r := s.Relay; r.DialTimeout <= 0 || r.UDPTimeout <= 0 || r.Retries < 0 {
		return nil, fmt.Errorf("mode userspace: time-outs must be longer than 0 and retries not negative: %+v", r)
	}
	d := &Dataplane{sockets: &nftables.Sockets{}, listening: make(chan net.Listener, 1)}
	var err error
	if d.Dataplane, err = overlay(d.sockets).Open(ctx, s); err != nil {
		return nil, err
	}
	if d.server, err = newServer(s.Relay, s.Served(), threads()); err != nil {
		return nil, errors.Join(err, d.Dataplane.Close())
	}
	return d, nil
}

// Sync has rows found, opens the listeners or takes them over, and then has
// rules lead there.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	refused := unserved(slices.Collect(maps.Keys(want.Rows)), want)
	own := want.Without(refused)
	d.find(slices.AppendSeq(d.server.index.Keys(), maps.Keys(own.Rows)), own.Rows)
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	more, err := d.Dataplane.Sync(ctx, own)
	return d.finish(refused, more, err)
}

// Apply has changed rows found, and rules lead to them.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	own := *changed
	own.Rows = slices.DeleteFunc(slices.Clone(changed.Rows), func(k proxy.PortKey) bool { return k.Protocol == proxy.SCTP })
	d.find(own.Rows, want.Rows)
	more, err := d.Dataplane.Apply(ctx, want, &own)
	return d.finish(unserved(changed.Rows, want), more, err)
}

// unserved returns those of some rows that cannot be served.
func unserved(keys []proxy.PortKey, want *proxy.State) proxy.Refused {
	refused := proxy.Refused{}
	for _, k := range keys {
		if k.Protocol == proxy.SCTP && want.Rows[k] != nil {
			refused[k] = errSCTP
		}
	}
	return refused
}

// find has rows found from now on.
func (d *Dataplane) find(changed []proxy.PortKey, want map[proxy.PortKey]*proxy.ServicePort) {
	if forget := d.server.index.Update(changed, want); forget != nil {
		d.forget = append(d.forget, forget)
	}
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

// begin sees to it that what rules lead to is there, and nothing takes it before.
func (d *Dataplane) begin(ctx context.Context) error {
	for _, f := range d.server.families {
		if err := routing.Ensure(f == proxy.IPv6); err != nil {
			return err
		}
	}
	if d.opened != nil {
		return nil
	}
	dummy, err := link.OpenDummy(mode.IPVSLink)
	if err == nil {
		err = errors.Join(checkIPVS(dummy), dummy.Close())
	}
	if err != nil {
		return err
	}
	log := klog.FromContext(ctx)
	if err := d.server.takeOver(); err != nil {
		log.Error(err, "Some connections of the former daemon are lost")
	}
	if err := d.server.listen(); err != nil {
		return err
	}
	for _, l := range d.server.listeners {
		d.sockets.Ports[l.Scope][l.Masquerade] = l.Port
	}
	d.server.start()
	d.opened = slices.Clone(d.server.listeners)
	successor, err := net.ListenUnix(meetingPoint.Net, meetingPoint)
	if err != nil {
		log.Error(err, "Open connections will not survive a restart")
		return nil
	}
	d.listening <- successor
	return nil
}

// checkIPVS refuses to begin while IPVS takes connections to Services.
func checkIPVS(l link.Holder) error {
	switch _, err := l.Find(); {
	case errors.Is(err, link.ErrNoLink), errors.Is(err, link.ErrNotDummy):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("IPVS takes packets to the addresses of link %s before a socket gets them: run mode nftables until its connections "+
		"have ended and the link is gone, or sluice --cleanup, which ends them", mode.IPVSLink)
}

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
	followed := make(chan struct{})
	var l net.Listener
	select {
	case l = <-d.listening:
		beside.Go(func() {
			if s.awaitSuccessor(l, stop) {
				close(followed)
			}
		})
	case <-ctx.Done():
	}
	select {
	case <-followed:
	case <-ctx.Done():
		s.drain(followed)
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

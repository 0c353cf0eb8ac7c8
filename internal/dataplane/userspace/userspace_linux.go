package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"

	"k8s.io/klog/v2"

	"sluice/internal/dataplane/mode"
	"sluice/internal/dataplane/nftables"
	"sluice/internal/kernel/link"
	"sluice/internal/kernel/sysctl"
	"sluice/internal/proxy"
)

// maxWorkers bounds the number of worker threads; each has its own listeners.
const maxWorkers = 16

// threads returns the number of workers: one for every two CPUs. The kernel's work for clients and
// endpoints takes as much CPU time again, and one busy thread handles several events per wake-up
// where two threads would be woken for each.
func threads() int { return min(max(1, runtime.GOMAXPROCS(0)/2), maxWorkers) }

var (
	errSCTP      = fmt.Errorf("mode userspace cannot serve SCTP, choose another --proxy-mode: %w", errors.ErrUnsupported)
	errTakenOver = errors.New("another daemon took over the connections")
)

// Dataplane relays connections. The rules of the embedded nftables dataplane implement policy and
// redirect connections to it.
type Dataplane struct {
	*nftables.Dataplane
	server    *server
	sockets   *nftables.Sockets
	removals  []func()          // remove old rows from the index, once no rule redirects to them
	listeners []*listener       // the listeners that rules redirect to; nil before the first Sync
	handover  chan net.Listener // where the successor connects
}

// Open connects to the kernel. It opens no listener: the first Sync does.
func Open(ctx context.Context, s mode.Settings) (*Dataplane, error) {
	if r := s.Relay; r.DialTimeout <= 0 || r.UDPTimeout <= 0 || r.Retries < 0 {
		return nil, fmt.Errorf("mode userspace: dial and UDP timeouts must be positive, and retries must not be negative: %+v", r)
	}
	d := &Dataplane{sockets: &nftables.Sockets{}, handover: make(chan net.Listener, 1)}
	var err error
	if d.Dataplane, err = overlay(d.sockets).Open(ctx, s); err != nil {
		return nil, err
	}
	if d.server, err = newServer(s.Relay, s.Served(), threads()); err != nil {
		return nil, errors.Join(err, d.Dataplane.Close())
	}
	return d, nil
}

// Sync adds rows to the index, opens listeners or takes them over from a predecessor, and then
// writes the rules that redirect to them.
func (d *Dataplane) Sync(ctx context.Context, want *proxy.State) (proxy.Refused, error) {
	refused := unsupported(slices.Collect(maps.Keys(want.Rows)), want)
	supported := want.Without(refused)
	d.updateIndex(slices.AppendSeq(d.server.index.Keys(), maps.Keys(supported.Rows)), supported.Rows)
	if err := d.prepare(ctx); err != nil {
		return nil, err
	}
	more, err := d.Dataplane.Sync(ctx, supported)
	return d.finish(refused, more, err)
}

// Apply adds changed rows to the index before the rules redirect to them, and removes old ones
// after.
func (d *Dataplane) Apply(ctx context.Context, want *proxy.State, changed *proxy.Changed) (proxy.Refused, error) {
	supported := *changed
	supported.Rows = slices.DeleteFunc(slices.Clone(changed.Rows), func(k proxy.PortKey) bool { return k.Protocol == proxy.SCTP })
	d.updateIndex(supported.Rows, want.Rows)
	more, err := d.Dataplane.Apply(ctx, want, &supported)
	return d.finish(unsupported(changed.Rows, want), more, err)
}

// unsupported returns an error for each of some rows that the mode cannot serve.
func unsupported(keys []proxy.PortKey, want *proxy.State) proxy.Refused {
	refused := proxy.Refused{}
	for _, k := range keys {
		if k.Protocol == proxy.SCTP && want.Rows[k] != nil {
			refused[k] = errSCTP
		}
	}
	return refused
}

// updateIndex adds changed rows to the index. Old frontends stay until finish.
func (d *Dataplane) updateIndex(changed []proxy.PortKey, want map[proxy.PortKey]*proxy.ServicePort) {
	if remove := d.server.index.Update(changed, want); remove != nil {
		d.removals = append(d.removals, remove)
	}
}

// finish removes from the index what no rule redirects to any more. It returns all refused rows.
func (d *Dataplane) finish(refused, more proxy.Refused, err error) (proxy.Refused, error) {
	maps.Copy(refused, more)
	if err == nil {
		for _, remove := range d.removals {
			remove()
		}
		d.removals = nil
	}
	return refused, err
}

// prepare sets up what the rules depend on: policy routing at every call, and the listeners at the
// first. It opens none, and returns an error, while IPVS would take their packets.
func (d *Dataplane) prepare(ctx context.Context) error {
	for _, f := range d.server.families {
		if err := routing.Ensure(f == proxy.IPv6); err != nil {
			return err
		}
	}
	if d.listeners != nil {
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
	warnOfBridges(log, sysctl.Kernel{})
	if err := d.server.takeOver(); err != nil {
		log.Error(err, "Cannot take over all connections of the former daemon, the others are lost")
	}
	d.server.subnets.update()
	if err := d.server.listen(); err != nil {
		return err
	}
	for _, l := range d.server.listeners {
		d.sockets.Ports[l.Scope][l.Masquerade] = l.Port
	}
	d.server.start()
	d.listeners = slices.Clone(d.server.listeners)
	successor, err := net.ListenUnix(handoverAddr.Net, handoverAddr)
	if err != nil {
		log.Error(err, "Cannot listen for a successor, open connections will not survive a restart")
		return nil
	}
	d.handover <- successor
	return nil
}

// warnOfBridges logs if bridges pass packets to netfilter (br_netfilter): they do so before the
// kernel forgets which socket tproxy chose, and then skip the rules that would choose it again.
func warnOfBridges(log klog.Logger, settings sysctl.Interface) {
	for _, name := range []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"} {
		if value, err := settings.Read(name); err == nil && value == "1" {
			log.Info("Mode userspace does not serve pods on a bridge that passes packets to netfilter: set the sysctl to 0 or choose another mode",
				"sysctl", strings.ReplaceAll(name, "/", "."))
		}
	}
}

// checkIPVS returns an error while IPVS takes connections to Services.
func checkIPVS(l link.Holder) error {
	switch _, err := l.Find(); {
	case errors.Is(err, link.ErrNoLink), errors.Is(err, link.ErrNotDummy):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("link %s exists, so IPVS takes packets to its addresses before a socket can: run mode nftables until the connections of IPVS "+
		"have ended and the link is gone, or run sluice --cleanup, which ends them", mode.IPVSLink)
}

// Run serves connections until ctx ends. Then it continues until a successor has taken them over,
// no TCP connection is open, or the drain timeout is over. If a successor takes over before ctx
// ends, Run returns an error.
func (d *Dataplane) Run(ctx context.Context) error {
	s := d.server
	s.log = klog.FromContext(ctx)
	var workers, waiting sync.WaitGroup
	for _, w := range s.workers {
		workers.Go(w.run)
	}
	stop := sync.OnceFunc(func() {
		for _, w := range s.workers {
			w.do(nil)
		}
		workers.Wait()
	})
	following, stopFollowing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopFollowing()
	s.subnets.followed = true
	go s.subnets.follow(following) // nobody waits for it: the kernel may be slow to answer
	takenOver := make(chan struct{})
	var l net.Listener
	select {
	case l = <-d.handover:
		waiting.Go(func() {
			if s.awaitSuccessor(l, stop) {
				close(takenOver)
			}
		})
	case <-ctx.Done():
	}
	select {
	case <-takenOver:
	case <-ctx.Done():
		s.drain(takenOver)
	}
	if l != nil {
		_ = l.Close()
	}
	waiting.Wait()
	stop()
	s.close()
	if ctx.Err() == nil {
		return errTakenOver
	}
	return nil
}

// Leave makes the rules yield to another proxy, unless another mode of Sluice already receives new
// connections instead of them.
func (d *Dataplane) Leave(ctx context.Context) error {
	ours, err := d.Complete(ctx)
	if err != nil || !ours {
		return err
	}
	return d.Dataplane.Leave(ctx)
}

// Metrics returns the metrics of the server and of the rules.
func (d *Dataplane) Metrics(ctx context.Context) []proxy.Metric {
	return append(d.Dataplane.Metrics(ctx), d.server.metrics()...)
}

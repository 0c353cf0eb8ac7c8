package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice/internal/proxy"
)

const (
	// netnsTTL is how long programs use what they know about a network namespace before
	// they ask again.
	netnsTTL = 10 * time.Second

	// sourceReads is how often the sockets that programs asked about are read before
	// giving up, since they may still be connecting; sourceReadDelay is the time between.
	sourceReads     = 5
	sourceReadDelay = time.Millisecond

	// hostReadRest bounds the cost of following addresses and routes, which change with
	// every pod: after reading them, Run waits this many times as long as that took, or as
	// long as a Sync takes if that is needed.
	hostReadRest = 20

	// cutCheckPeriod is how often Run checks whether there still are sockets to cut.
	cutCheckPeriod = time.Second

	// retryDelay is the time after which Run retries what failed.
	retryDelay = time.Second
)

// Run answers the questions of programs, follows the node's addresses and routes, and
// renews the lease, until ctx ends.
func (d *Dataplane) Run(ctx context.Context) error {
	questions, err := ringbuf.NewReader(d.kernel.Questions)
	if err != nil {
		return fmt.Errorf("open ring buffer questions: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { d.answerQuestions(ctx, questions) })
	changed := make(chan struct{}, 1)
	wg.Go(func() { d.watchHost(ctx, changed) })
	d.serve(ctx, changed)
	err = questions.Close()
	wg.Wait()
	return err
}

// serve is the main loop of Run. A token in changed means that addresses or routes have
// changed.
func (d *Dataplane) serve(ctx context.Context, changed chan struct{}) {
	log := klog.FromContext(ctx)
	tick := time.NewTicker(leaseRenewal)
	defer tick.Stop()
	// Timers of a read of addresses and routes, and of a check for sockets to cut; nil if
	// none is due. They are kept over other events, which may come at any rate.
	var hostReadDue, cutCheckDue <-chan time.Time
	for {
		if cutCheckDue == nil && d.cutting() {
			cutCheckDue = time.After(cutCheckPeriod)
		}
		var what string
		var err error
		var retry chan struct{} // nil: the next tick retries
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			what, err = "The lease of programs cannot be renewed", d.locked(func() error { return d.setLease(lease) })
			if failed := d.locked(func() error { return d.checkUntracking(ctx) }); failed != nil {
				log.Error(failed, "Flows cannot be listed, connections between pods stay tracked for now")
			}
		case <-cutCheckDue:
			cutCheckDue = nil
			notify(d.checkStale)
		case <-changed:
			if hostReadDue == nil {
				hostReadDue = time.After(time.Until(d.nextHostRead))
			}
		case <-hostReadDue:
			hostReadDue = nil
			what, retry, err = "Addresses and routes of the node cannot be read", changed, d.locked(d.refreshHost)
		case <-d.checkStale:
			what, retry, err = "UDP sockets of endpoints that are gone cannot be cut", d.checkStale, d.locked(d.cutStale)
		}
		if err != nil {
			log.Error(err, what)
			time.AfterFunc(retryDelay, func() { notify(retry) })
		}
	}
}

// cutting reports whether UDP sockets are being cut.
func (d *Dataplane) cutting() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.kernel.flags&flagCutting != 0
}

func (d *Dataplane) locked(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f()
}

// watchHost notifies changed when addresses or routes change, or when events may have been
// lost, until ctx ends.
func (d *Dataplane) watchHost(ctx context.Context, changed chan struct{}) {
	timeout := unix.NsecToTimeval(int64(time.Second))
	if err := d.hostEvents.SetReceiveTimeout(&timeout); err != nil {
		klog.FromContext(ctx).Error(err, "Changes of addresses and routes are noticed only by a full sync")
		return
	}
	for ctx.Err() == nil {
		_, _, err := d.hostEvents.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			klog.FromContext(ctx).Error(err, "Changes of addresses and routes may be noticed late")
			sleep(ctx, retryDelay)
		}
		notify(changed)
	}
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// refreshHost reads addresses and routes and writes the addresses. If rows depend on what
// changed, it asks for a Sync.
func (d *Dataplane) refreshHost() error {
	if d.disabled != nil {
		return nil
	}
	began := time.Now()
	h, err := readHost(d.netlink, d.node)
	cost := time.Since(began)
	if err == nil && !d.sameHost(h) {
		notify(d.hostChanged)
		cost += d.syncTook
	}
	d.nextHostRead = time.Now().Add(hostReadRest * cost)
	if err != nil {
		return err
	}
	return d.writeNodeAddrs(h, d.node)
}

// sameHost reports whether rows and rules are the same for h as for the host in force.
func (d *Dataplane) sameHost(h *host) bool {
	pods := d.untracking.pods
	return h.sameRows(d.host) && slices.Equal(h.addrsWithin(pods), d.host.addrsWithin(pods))
}

// Watch watches the rules. It also asks for a Sync when rows change because of addresses and
// routes, or when untracking may start; no other process changed our rules then.
func (d *Dataplane) Watch(ctx context.Context, missed func(), changed func(what string)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.hostChanged:
				klog.FromContext(ctx).V(4).Info("Addresses or routes of the node changed, rows are compared with them")
				missed()
			case <-d.untracking.ready:
				missed()
			}
		}
	})
	err := d.Dataplane.Watch(ctx, missed, changed)
	stop()
	return err
}

// questionReader is the part of [ringbuf.Reader] that answerQuestions needs.
type questionReader interface {
	ReadInto(*ringbuf.Record) error
}

// answerQuestions waits for programs to ask about a network namespace, and writes what
// sockets say about it, until the reader is closed.
func (d *Dataplane) answerQuestions(ctx context.Context, questions questionReader) {
	log := klog.FromContext(ctx)
	var record ringbuf.Record
	for {
		switch err := questions.ReadInto(&record); {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			log.Error(err, "Questions of programs cannot be read for now, the rules serve pods that are not known yet")
			sleep(ctx, retryDelay)
			continue
		}
		// A socket gets its source address only after the program that asks has returned.
		for range sourceReads {
			n, err := d.learnNamespaces()
			if err != nil {
				log.Error(err, "Questions of programs cannot be answered, the rules serve pods that are not known yet")
			}
			if n > 0 || err != nil || ctx.Err() != nil {
				break
			}
			time.Sleep(sourceReadDelay)
		}
	}
}

// learnNamespaces reads the source addresses of the sockets that programs asked about, and
// returns how many namespaces it learnt about.
func (d *Dataplane) learnNamespaces() (int, error) {
	records, err := runIterator(d.kernel.Sources, d.kernel.Asked, 32)
	if err != nil {
		return 0, fmt.Errorf("read source addresses of sockets: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.node == nil {
		return 0, nil
	}
	sources := map[netnsKey]netip.Addr{}
	for _, r := range records {
		addr := netip.AddrFrom16([16]byte(r[8:24])).Unmap()
		k := makeNetnsKey(binary.NativeEndian.Uint64(r), proxy.FamilyOf(addr))
		if known, ok := sources[k]; ok && known != addr {
			addr = netip.Addr{} // It has several, so the next socket may have any of them.
		}
		sources[k] = addr
	}
	now, err := monotonicNow()
	for k, addr := range sources {
		if err == nil {
			err = d.kernel.Spaces.Update(k, d.classify(k, addr, now+uint64(netnsTTL)), ebpf.UpdateAny)
		}
	}
	return len(sources), err
}

// classify returns what programs need to know about a namespace whose sockets have the
// source address a. An invalid address means that there is no single one.
func (d *Dataplane) classify(k netnsKey, a netip.Addr, until uint64) netnsValue {
	if !a.IsValid() || a.IsLoopback() || a.IsLinkLocalUnicast() {
		return makeNetnsValue(k, netip.IPv6Unspecified(), originUnknown, until)
	}
	p := proxy.Packet{Src: a}
	if d.node.LocalPods.Interface != "" {
		if p.In = d.linkTo(a); p.In == "" {
			return makeNetnsValue(k, a, originUnknown, until)
		}
	}
	return makeNetnsValue(k, a, uint32(d.node.Origin(p)), until)
}

// linkTo returns the name of the link that leads to a pod, which is also the one that its
// packets arrive on; empty if there is none.
func (d *Dataplane) linkTo(a netip.Addr) string {
	routes, err := d.netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return ""
	}
	l, err := d.netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}

// forgetNamespaces removes what is known about namespaces: their origins depend on the
// node's configuration.
func (d *Dataplane) forgetNamespaces() error {
	var keys []netnsKey
	err := forEach(d.kernel.Spaces, func(k netnsKey, _ netnsValue) { keys = append(keys, k) })
	return errors.Join(err, d.kernel.writeMaps(func() (err error) {
		for _, k := range keys {
			if failed := d.kernel.Spaces.Delete(k); failed != nil && !errors.Is(failed, ebpf.ErrKeyNotExist) {
				err = errors.Join(err, failed)
			}
		}
		return err
	}))
}

// cutStale looks for UDP sockets that are connected to an endpoint that is gone, and keeps
// a program attached that drops what they send for as long as there are any.
func (d *Dataplane) cutStale() error {
	if !d.attached || d.disabled != nil {
		return nil // The maps may be wrong.
	}
	found, err := runIterator(d.kernel.Stale, d.kernel.UDP, 4)
	if err != nil {
		return err
	}
	cut, was := d.kernel.cutHook(), d.kernel.flags
	switch {
	case len(found) > 0 && was&flagCutting == 0:
		d.kernel.flags |= flagCutting // first, so that no packet that is dropped is counted as sent
		err := d.setLease(lease)
		if err == nil {
			_, err = d.kernel.attachOne(cut)
		}
		if err != nil {
			d.kernel.flags = was // so that it is retried
			return err
		}
	case len(found) == 0:
		if err := d.kernel.detach(cut.name); err != nil { // a former daemon may have attached it
			return err
		}
		if d.kernel.flags &^= flagCutting; was != d.kernel.flags {
			return d.setLease(lease)
		}
	}
	return nil
}

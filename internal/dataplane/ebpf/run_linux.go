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
	// spaceTime is for how long what is known of a namespace is taken for granted.
	spaceTime = 10 * time.Second

	// answerTries is how often to look at sockets that are being connected.
	answerTries = 5
	answerPause = time.Millisecond

	// restFactor is how many times its own length a reading of addresses and routes
	// is followed by rest: pods come and go with routes.
	restFactor = 20

	// cutPause is how often to look whether there is still something to cut.
	cutPause = time.Second

	// retryPause is how long to wait before something is tried again that failed.
	retryPause = time.Second
)

// Run answers what programs ask, follows addresses and routes, and renews the
// programs' permission, until ctx ends.
func (d *Dataplane) Run(ctx context.Context) error {
	questions, err := ringbuf.NewReader(d.kernel.Questions)
	if err != nil {
		return fmt.Errorf("read questions: %w", err)
	}
	var beside sync.WaitGroup
	beside.Go(func() { d.answerAll(ctx, questions) })
	changed := make(chan struct{}, 1)
	beside.Go(func() { d.listen(ctx, changed) })
	d.serve(ctx, changed)
	err = questions.Close()
	beside.Wait()
	return err
}

// serve does what comes up.
func (d *Dataplane) serve(ctx context.Context, changed chan struct{}) {
	log := klog.FromContext(ctx)
	tick := time.NewTicker(renew)
	defer tick.Stop()
	var read <-chan time.Time // when to read addresses and routes
	for {
		var what string
		var err error
		var again chan struct{} // what asks for it
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			what, err = "Permission of programs cannot be renewed", d.locked(func() error { return d.allow(lease) })
			if failed := d.locked(func() error { return d.lookForOlder(ctx) }); failed != nil {
				log.Error(failed, "Connections between pods are tracked for now")
			}
		case <-d.whileCutting():
			notify(d.look)
		case <-changed:
			if read == nil {
				read = time.After(time.Until(d.rested))
			}
		case <-read:
			read = nil
			what, again, err = "Addresses and routes of the node cannot be read", changed, d.locked(d.readAgain)
		case <-d.look:
			what, again, err = "Sockets of endpoints that are gone cannot be looked for", d.look, d.locked(d.cutStale)
		}
		if err != nil {
			log.Error(err, what)
			time.AfterFunc(retryPause, func() { notify(again) })
		}
	}
}

// whileCutting has a token when it is time to see whether there is still something
// to cut.
func (d *Dataplane) whileCutting() <-chan time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kernel.says&cutting == 0 {
		return nil
	}
	return time.After(cutPause)
}

func (d *Dataplane) locked(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f()
}

// listen tells of changes of addresses and routes.
func (d *Dataplane) listen(ctx context.Context, changed chan struct{}) {
	timeout := unix.NsecToTimeval(int64(time.Second))
	if err := d.news.SetReceiveTimeout(&timeout); err != nil {
		klog.FromContext(ctx).Error(err, "Changes of addresses and routes will not be seen")
		return
	}
	for ctx.Err() == nil {
		_, _, err := d.news.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			klog.FromContext(ctx).Error(err, "Changes of addresses and routes may be seen late")
			pause(ctx, retryPause)
		}
		notify(changed)
	}
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// readAgain follows the node's addresses and routes. What rows depend on is for a Sync.
func (d *Dataplane) readAgain() error {
	if d.off != nil {
		return nil
	}
	began := time.Now()
	h, err := readHost(d.routes, d.state)
	d.rested = time.Now().Add(restFactor * time.Since(began))
	if err != nil {
		return err
	}
	if !d.same(h) {
		notify(d.moved)
	}
	return d.writeHost(h, d.state)
}

// same reports whether rows and rules are alike for another host.
func (d *Dataplane) same(h *host) bool {
	pods := d.untracking.pods
	return h.same(d.host) && slices.Equal(h.within(pods), d.host.within(pods))
}

// Watch also tells when rows are to be different because of addresses and routes.
func (d *Dataplane) Watch(ctx context.Context, missed func(), changed func(what string)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.moved:
				changed("source addresses of the node's routes")
			case <-d.untracking.may:
				missed()
			}
		}
	})
	err := d.Dataplane.Watch(ctx, missed, changed)
	stop()
	return err
}

// questions is what programs ask.
type questions interface {
	ReadInto(*ringbuf.Record) error
}

// answerAll tells programs about the namespaces that they ask about.
func (d *Dataplane) answerAll(ctx context.Context, asked questions) {
	log := klog.FromContext(ctx)
	var record ringbuf.Record
	for {
		switch err := asked.ReadInto(&record); {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			log.Error(err, "Namespaces cannot be learnt about for now, the rules serve their sockets")
			pause(ctx, retryPause)
			continue
		}
		// The socket gets its source after the program that asks has ended.
		for try := 0; try < answerTries; try++ {
			n, err := d.answer()
			if err != nil {
				log.Error(err, "Namespaces cannot be learnt about, the rules serve their sockets")
			}
			if n > 0 || err != nil || ctx.Err() != nil {
				break
			}
			time.Sleep(answerPause)
		}
	}
}

// answer reads the sources of the sockets that were asked about, and returns how
// many namespaces were learnt about.
func (d *Dataplane) answer() (int, error) {
	records, err := run(d.kernel.Sources, d.kernel.Asked, 32)
	if err != nil {
		return 0, fmt.Errorf("read sources of sockets: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil {
		return 0, nil
	}
	sources := map[spaceKey]netip.Addr{}
	for _, r := range records {
		addr := netip.AddrFrom16([16]byte(r[8:24])).Unmap()
		k := spaceOf(binary.NativeEndian.Uint64(r), proxy.FamilyOf(addr))
		if known, ok := sources[k]; ok && known != addr {
			addr = netip.Addr{} // It has several, so nothing can be said of it.
		}
		sources[k] = addr
	}
	now, err := sinceBoot()
	for k, addr := range sources {
		if err == nil {
			err = d.kernel.Spaces.Update(k, d.classify(k, addr, now+uint64(spaceTime)), ebpf.UpdateAny)
		}
	}
	return len(sources), err
}

// classify says what sockets of a namespace are to policy.
func (d *Dataplane) classify(k spaceKey, a netip.Addr, until uint64) spaceValue {
	if !a.IsValid() || a.IsLoopback() || a.IsLinkLocalUnicast() {
		return spaceIs(k, netip.IPv6Unspecified(), unknown, until)
	}
	p := proxy.Packet{Src: a}
	if d.state.LocalPods.Interface != "" {
		if p.In = d.linkTowards(a); p.In == "" {
			return spaceIs(k, a, unknown, until)
		}
	}
	return spaceIs(k, a, uint32(d.state.Origin(p)), until)
}

// linkTowards returns the link by which a pod is reached, and so comes in.
func (d *Dataplane) linkTowards(a netip.Addr) string {
	routes, err := d.routes.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return ""
	}
	l, err := d.routes.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}

// forgetSpaces makes all namespaces unknown: what they are depends on the node.
func (d *Dataplane) forgetSpaces() (err error) {
	var keys []spaceKey
	err = each(d.kernel.Spaces, func(k spaceKey, _ spaceValue) { keys = append(keys, k) })
	return errors.Join(err, d.kernel.change(func() (err error) {
		for _, k := range keys {
			if failed := d.kernel.Spaces.Delete(k); failed != nil && !errors.Is(failed, ebpf.ErrKeyNotExist) {
				err = errors.Join(err, failed)
			}
		}
		return err
	}))
}

// cutStale finds the UDP sockets that are connected to an endpoint that is gone,
// and has a program refuse what they send for as long as there are any.
func (d *Dataplane) cutStale() error {
	if !d.attached || d.off != nil {
		return nil // What the maps say is not known.
	}
	found, err := run(d.kernel.Stale, d.kernel.UDP, 4)
	if err != nil {
		return err
	}
	cut, was := d.kernel.cut(), d.kernel.says
	switch {
	case len(found) > 0 && was&cutting == 0:
		d.kernel.says |= cutting // first, so that nothing that is cut is counted as sent
		err := d.allow(lease)
		if err == nil {
			_, err = d.kernel.attachOne(cut)
		}
		if err != nil {
			d.kernel.says = was // so that it is tried again
			return err
		}
	case len(found) == 0:
		if err := d.kernel.detach(cut.name); err != nil {
			return err
		}
		if d.kernel.says &^= cutting; was != d.kernel.says {
			return d.allow(lease)
		}
	}
	return nil
}

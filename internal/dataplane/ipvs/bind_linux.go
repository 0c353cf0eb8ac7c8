package ipvs

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// binder adds addresses to our link in the background, in the order of the requests:
// the kernel walks all addresses of a link for each that is added, so thousands of them
// take longer than their servers.
type binder struct {
	add func(...netip.Addr) map[netip.Addr]error // returns the errors by address

	mu      sync.Mutex
	results map[netip.Addr]chan struct{} // of all requests since the last finish; closed when there is a result
	refused map[netip.Addr]error
	queue   []netip.Addr
	running sync.WaitGroup
	runs    bool
}

// bindsAtOnce is how many addresses are added by one system call.
const bindsAtOnce = 32

// request queues addresses. One that was requested since the last finish is ignored.
func (b *binder) request(some ...netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.results == nil {
		b.results, b.refused = map[netip.Addr]chan struct{}{}, map[netip.Addr]error{}
	}
	for _, a := range some {
		if b.results[a] == nil {
			b.results[a] = make(chan struct{})
			b.queue = append(b.queue, a)
		}
	}
	if !b.runs && len(b.queue) > 0 {
		b.runs = true
		b.running.Go(b.run)
	}
}

// run adds addresses until none is queued.
func (b *binder) run() {
	for some := b.next(nil, nil); len(some) > 0; {
		some = b.next(some, b.add(some...))
	}
}

// next records the results of some addresses and returns those to add after them.
func (b *binder) next(some []netip.Addr, refused map[netip.Addr]error) []netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range some {
		if why := refused[a]; why != nil && !errors.Is(why, unix.EEXIST) {
			b.refused[a] = why
		}
		close(b.results[a])
	}
	n := min(bindsAtOnce, len(b.queue))
	some, b.queue, b.runs = b.queue[:n:n], b.queue[n:], n > 0
	return some
}

// wait waits for a requested address, and returns why it was refused.
func (b *binder) wait(a netip.Addr) error {
	b.mu.Lock()
	result := b.results[a]
	b.mu.Unlock()
	<-result
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused[a]
}

// finish waits for all requested addresses, returns those that were added, and forgets
// all of them.
func (b *binder) finish() []netip.Addr {
	b.running.Wait()
	maps.DeleteFunc(b.results, func(a netip.Addr, _ chan struct{}) bool { return b.refused[a] != nil })
	added := slices.Collect(maps.Keys(b.results))
	b.results, b.refused = nil, nil
	return added
}

// request requests the addresses of virtual servers that our link does not have.
func (d *Dataplane) request(servers ...ipvs.Server) {
	var missing []netip.Addr
	for _, s := range servers {
		if a := s.Addr.Addr(); d.ours[a] == nil {
			missing = append(missing, a)
		}
	}
	d.binder.request(missing...)
}

// expect requests the addresses of virtual servers that will be written soon, some at a
// time.
func (d *Dataplane) expect(s ipvs.Server) {
	if d.expected = append(d.expected, s); len(d.expected) == serversAtOnce {
		d.request(d.expected...)
		d.expected = d.expected[:0]
	}
}

// bind waits until our link has an address.
func (d *Dataplane) bind(a netip.Addr) error {
	if d.ours[a] != nil {
		return nil
	}
	d.binder.request(a)
	err := d.binder.wait(a)
	if err == nil {
		d.ours[a] = map[ipvs.Server]bool{}
	}
	return err
}

// settle waits until no address is being added, and records all that were, those of
// refused rows too.
func (d *Dataplane) settle() {
	d.expected = nil
	for _, a := range d.binder.finish() {
		if d.ours[a] == nil {
			d.ours[a] = map[ipvs.Server]bool{}
		}
	}
}

// unbind removes an address from our link if no server of ours uses it.
func (d *Dataplane) unbind(a netip.Addr) error {
	if servers, ok := d.ours[a]; !ok || len(servers) > 0 || aliases[proxy.FamilyOf(a)] == a || d.excluded(a) {
		return nil
	}
	if err := d.kernel.link.Remove(a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	delete(d.ours, a)
	return nil
}

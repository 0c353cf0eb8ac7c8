package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sluice/internal/kernel/ipvs"
	"sluice/internal/proxy"
)

// bind makes this host accept packets to addresses, and returns why some were refused.
// IPv4 addresses get the route of an address only: for each address that is added, the
// kernel walks all that the link has. [Dataplane.Run] adds them later.
func (d *Dataplane) bind(some map[netip.Addr]bool) (refused map[netip.Addr]error) {
	refused = map[netip.Addr]error{}
	missing := slices.DeleteFunc(slices.Collect(maps.Keys(some)), func(a netip.Addr) bool { return d.ours[a] != nil })
	for part := range slices.Chunk(missing, bindAtOnce) { // after the link was deleted there may be thousands
		maps.Copy(refused, d.kernel.link.Route(part...))
		for _, a := range part {
			if refused[a] == nil {
				d.own(a, a.Is6())
			}
		}
	}
	return refused
}

// own records an address of ours, and whether the link has it.
func (d *Dataplane) own(a netip.Addr, added bool) {
	d.ours[a] = map[ipvs.Server]bool{}
	if delete(d.routed, a); !added {
		d.routed[a] = true
	}
}

// unbind removes an address of ours if no server uses it.
func (d *Dataplane) unbind(a netip.Addr) error {
	if servers, ok := d.ours[a]; !ok || len(servers) > 0 || aliases[proxy.FamilyOf(a)] == a || d.excluded(a) {
		return nil
	}
	if err := d.kernel.link.Remove(a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	delete(d.ours, a)
	delete(d.routed, a)
	return nil
}

const (
	addAtOnce = 64 // how many addresses are added to the link while Sync and Apply wait
	addRest   = 4  // how many times as long as it works addRouted rests
)

// addRouted adds the addresses that have only routes to the link, where kube-proxy and
// people look for them. Nothing waits for that, so it leaves the processor to others.
// What is refused is tried again after the next Sync.
func (d *Dataplane) addRouted(ctx context.Context) {
	refused := map[netip.Addr]error{}
	for more := true; more && ctx.Err() == nil; {
		began := time.Now()
		more = d.addSome(refused)
		select {
		case <-ctx.Done():
		case <-time.After(addRest * time.Since(began)):
		}
	}
	if errs := slices.Collect(maps.Values(refused)); len(errs) > 0 {
		klog.FromContext(ctx).Error(errs[0], "Could not add addresses to the link, their routes serve", "link", linkName, "addresses", len(errs))
	}
}

// addSome adds some of the addresses that have only routes, and reports whether others
// are left.
func (d *Dataplane) addSome(refused map[netip.Addr]error) (more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	some := make([]netip.Addr, 0, addAtOnce)
	for a := range d.routed {
		if len(some) == addAtOnce {
			break
		}
		some = append(some, a)
		delete(d.routed, a)
	}
	maps.Copy(refused, d.kernel.link.Add(some...))
	return len(d.routed) > 0
}

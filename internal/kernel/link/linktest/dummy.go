package linktest

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"sluice/internal/kernel/link"
)

// Dummy is a dummy link in memory.
type Dummy struct {
	mu     sync.Mutex
	exists bool
	note   link.Note
	addrs  []netip.Addr
	routed []netip.Addr
	refuse map[netip.Addr]error
	count  Count
}

// Count is how many calls added, routed or removed addresses, how many addresses they
// named, and how often all addresses were listed.
type Count struct{ Calls, Addresses, Lists int }

// Refuse makes adding an address fail, until err is nil.
func (d *Dummy) Refuse(a netip.Addr, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse == nil {
		d.refuse = map[netip.Addr]error{}
	}
	d.refuse[a] = err
}

// Reset returns the counts since the last Reset.
func (d *Dummy) Reset() Count {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.count
	d.count = Count{}
	return n
}

// Find returns the note, or an error if the link does not exist.
func (d *Dummy) Find() (link.Note, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.exists {
		return nil, link.ErrNoLink
	}
	note := link.Note{}
	maps.Copy(note, d.note)
	return note, nil
}

// Create creates the link.
func (d *Dummy) Create() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.exists {
		return syscall.EEXIST
	}
	d.exists = true
	return nil
}

// Delete deletes the link and its addresses.
func (d *Dummy) Delete() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.exists {
		return syscall.ENODEV
	}
	d.exists, d.note, d.addrs, d.routed = false, nil, nil, nil
	return nil
}

// SetNote stores a note.
func (d *Dummy) SetNote(note link.Note) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note = maps.Clone(note)
	return nil
}

// List returns the addresses, and those that are only routed, sorted.
func (d *Dummy) List() (on, routed []netip.Addr, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Lists++
	return slices.SortedFunc(slices.Values(d.addrs), netip.Addr.Compare), slices.SortedFunc(slices.Values(d.routed), netip.Addr.Compare), nil
}

// Has reports whether the link has an address, or only the route.
func (d *Dummy) Has(a netip.Addr) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.has(a), nil
}

func (d *Dummy) has(a netip.Addr) bool {
	return slices.Contains(d.addrs, a) || slices.Contains(d.routed, a)
}

// Route routes IPv4 addresses and adds IPv6 ones, except for those that Refuse has named.
func (d *Dummy) Route(all ...netip.Addr) map[netip.Addr]error {
	return d.change(all, func(a netip.Addr) {
		switch {
		case d.has(a):
		case a.Is4():
			d.routed = append(d.routed, a)
		default:
			d.addrs = append(d.addrs, a)
		}
	})
}

// Add adds addresses, except for those that Refuse has named.
func (d *Dummy) Add(all ...netip.Addr) map[netip.Addr]error {
	return d.change(all, func(a netip.Addr) {
		d.routed = without(d.routed, a)
		if !slices.Contains(d.addrs, a) {
			d.addrs = append(d.addrs, a)
		}
	})
}

// change calls f for the addresses that are not to be refused, and returns the others.
func (d *Dummy) change(all []netip.Addr, f func(netip.Addr)) map[netip.Addr]error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Calls++
	d.count.Addresses += len(all)
	refused := map[netip.Addr]error{}
	for _, a := range all {
		if refused[a] = d.refuse[a]; refused[a] == nil {
			delete(refused, a)
			f(a)
		}
	}
	return refused
}

// Remove removes an address, or its route.
func (d *Dummy) Remove(a netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Calls++
	d.count.Addresses++
	if !d.has(a) {
		return syscall.EADDRNOTAVAIL
	}
	was := slices.Contains(d.addrs, a)
	d.addrs, d.routed = without(d.addrs, a), without(d.routed, a)
	if was && !slices.ContainsFunc(d.addrs, netip.Addr.Is4) {
		d.routed = nil
	}
	return nil
}

func without(all []netip.Addr, a netip.Addr) []netip.Addr {
	return slices.DeleteFunc(all, func(b netip.Addr) bool { return a == b })
}

// Close does nothing.
func (d *Dummy) Close() error { return nil }

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
	refuse map[netip.Addr]error
	count  Count
}

// Count is how many calls added or removed addresses, how many addresses they named, and
// how often all addresses were listed.
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
	return maps.Clone(d.note), nil
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
	d.exists, d.note, d.addrs = false, nil, nil
	return nil
}

// SetNote stores a note.
func (d *Dummy) SetNote(note link.Note) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note = maps.Clone(note)
	return nil
}

// List returns the addresses, sorted.
func (d *Dummy) List() ([]netip.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Lists++
	return slices.SortedFunc(slices.Values(d.addrs), netip.Addr.Compare), nil
}

// Has reports whether the link has an address.
func (d *Dummy) Has(a netip.Addr) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.addrs, a), nil
}

// Add adds addresses, except for those that Refuse has named.
func (d *Dummy) Add(all ...netip.Addr) map[netip.Addr]error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Calls++
	d.count.Addresses += len(all)
	refused := map[netip.Addr]error{}
	for _, a := range all {
		switch {
		case d.refuse[a] != nil:
			refused[a] = d.refuse[a]
		case slices.Contains(d.addrs, a):
			refused[a] = syscall.EEXIST
		default:
			d.addrs = append(d.addrs, a)
		}
	}
	return refused
}

// Remove removes an address.
func (d *Dummy) Remove(a netip.Addr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.Calls++
	d.count.Addresses++
	i := slices.Index(d.addrs, a)
	if i < 0 {
		return syscall.EADDRNOTAVAIL
	}
	d.addrs = slices.Delete(d.addrs, i, i+1)
	return nil
}

// Close does nothing.
func (d *Dummy) Close() error { return nil }

package link

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Holder is a dummy link that holds addresses, so that the kernel delivers packets to them
// on this host. [Dummy] and linktest.Dummy implement it.
type Holder interface {
	// Find finds the link and returns its note. The error is [ErrNoLink] if there is
	// none, and [ErrNotDummy] if it is of another type. All methods but Create and Close
	// need a successful Find or Create before.
	Find() (Note, error)
	Create() error
	Delete() error // also deletes its addresses
	SetNote(Note) error
	// List returns the addresses of the link, and those that have only a route by Route.
	// Addresses of networks, as the link's own link-local one, are left out.
	List() (on, routed []netip.Addr, err error)
	// Has reports whether packets to an address are delivered on this host: because the
	// link has it, or only the route, or because of somebody else. It lists nothing.
	Has(netip.Addr) (bool, error)
	// Route adds the routes that come with addresses, so that packets to them are
	// delivered on this host. Its cost does not depend on how many addresses there are,
	// but that of Add does, for IPv4. Add may follow at any time and disturbs nothing.
	// IPv6 addresses are added at once.
	Route(...netip.Addr) (refused map[netip.Addr]error)
	// Add adds addresses. Route and Add treat each address independently of the others
	// and return why some were refused; an address that is there already is not.
	Add(...netip.Addr) (refused map[netip.Addr]error)
	// Remove removes an address, or its route if Add has not been called. The error is
	// EADDRNOTAVAIL if there is neither. With the last IPv4 address of the link the kernel
	// removes the routes of all.
	Remove(netip.Addr) error
	Close() error
}

// Note is data that is stored in the alias of a link, which has at most 255 characters.
// Keys and values must not contain spaces.
type Note map[string]string

// noteStart begins an alias that is a note.
const noteStart = "note"

// String returns the note as an alias.
func (n Note) String() string {
	words := []string{noteStart}
	for _, name := range slices.Sorted(maps.Keys(n)) {
		words = append(words, name+"="+n[name])
	}
	return strings.Join(words, " ")
}

// readNote parses an alias. It returns an empty note if the alias is not one.
func readNote(alias string) Note {
	n := Note{}
	if words := strings.Fields(alias); len(words) > 0 && words[0] == noteStart {
		for _, w := range words[1:] {
			name, value, _ := strings.Cut(w, "=")
			n[name] = value
		}
	}
	return n
}

// ErrNoLink means that there is no link of a name, ErrNotDummy that the link is of
// another type.
var (
	ErrNoLink   = errors.New("no such link")
	ErrNotDummy = errors.New("not a dummy link")
)

// hostPrefixes returns each address as a prefix.
func hostPrefixes(addrs []netip.Addr) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// notify sends a token, unless the channel has one already.
func notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

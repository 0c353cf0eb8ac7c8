package link

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Holder is a dummy link that holds addresses, so that packets to them are for
// this host. [Dummy] is one, linktest.Dummy another.
type Holder interface {
	// Find looks for the link and returns what was noted on it. The error is
	// [ErrNoLink] if there is none, [ErrNotDummy] if it is another program's.
	Find() (Note, error)
	Create() error
	Delete() error // with its addresses
	SetNote(Note) error
	List() ([]netip.Addr, error) // without link-local ones
	// Has reports whether packets to an address are for this host because the link
	// has it. It lists nothing.
	Has(netip.Addr) (bool, error)
	// Add adds addresses, each whatever becomes of the others, and returns why it
	// could not add some.
	Add(...netip.Addr) (refused map[netip.Addr]error)
	Remove(netip.Addr) error
	Close() error
}

// Note is what a link notes by its alias, of at most 255 characters: words with
// their values, neither of which has spaces.
type Note map[string]string

// noteStart begins the alias of a link that has a note.
const noteStart = "note"

// String returns the alias.
func (n Note) String() string {
	words := []string{noteStart}
	for _, name := range slices.Sorted(maps.Keys(n)) {
		words = append(words, name+"="+n[name])
	}
	return strings.Join(words, " ")
}

// readNote reads an alias, which may be anybody's.
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

// ErrNoLink says that there is no link of a name, ErrNotDummy that it is of
// another kind.
var (
	ErrNoLink   = errors.New("no such link")
	ErrNotDummy = errors.New("not a dummy link")
)

// hosts returns addresses as prefixes of one address each.
func hosts(addrs []netip.Addr) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// notify leaves a token, unless there is one.
func notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

package resolve

import (
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// arrange returns the wanted endpoints, which are sorted, in slots that follow
// from the old ones: who had a slot keeps it, newcomers take the slots of those
// that left, and the last ones move into slots that remain empty, so that as few
// as possible change. The result is old itself if nothing changed.
func arrange(old, wanted []proxy.Endpoint) []proxy.Endpoint {
	if len(wanted) == 0 {
		return nil
	}
	slots := make([]proxy.Endpoint, len(old), max(len(old), len(wanted)))
	stays := make([]bool, len(wanted))
	var empty []int // ascending
	for i, e := range old {
		at, found := slices.BinarySearchFunc(wanted, e.Addr, func(e proxy.Endpoint, a netip.AddrPort) int {
			return e.Addr.Compare(a)
		})
		if !found {
			empty = append(empty, i)
			continue
		}
		slots[i], stays[at] = wanted[at], true
	}
	for i, e := range wanted {
		switch {
		case stays[i]:
		case len(empty) > 0:
			slots[empty[0]], empty = e, empty[1:]
		default:
			slots = append(slots, e)
		}
	}
	for len(empty) > 0 {
		last := len(slots) - 1
		if e := len(empty) - 1; empty[e] == last {
			empty = empty[:e]
		} else {
			slots[empty[0]], empty = slots[last], empty[1:]
		}
		slots = slots[:last]
	}
	switch {
	case slices.Equal(slots, old):
		return old
	case len(slots) < cap(slots):
		return slices.Clone(slots) // rows live long: no room for endpoints that left
	default:
		return slots
	}
}

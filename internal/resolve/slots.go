package resolve

import (
	"net/netip"
	"slices"

	"sluice/internal/proxy"
)

// seating is the work of giving wanted endpoints their slots: those that had
// one keep it.
type seating struct {
	slots     []proxy.Endpoint // as before; holes hold nothing
	holes     []int            // ascending
	newcomers []proxy.Endpoint // sorted by address
}

// seat compares the slots of before with what is wanted, which is sorted.
func seat(old, wanted []proxy.Endpoint) seating {
	s := seating{slots: make([]proxy.Endpoint, len(old), max(len(old), len(wanted)))}
	stays := make([]bool, len(wanted))
	for i, e := range old {
		at, found := slices.BinarySearchFunc(wanted, e.Addr, func(e proxy.Endpoint, a netip.AddrPort) int {
			return e.Addr.Compare(a)
		})
		if !found {
			s.holes = append(s.holes, i)
			continue
		}
		s.slots[i] = wanted[at]
		stays[at] = true
	}
	for i, e := range wanted {
		if !stays[i] {
			s.newcomers = append(s.newcomers, e)
		}
	}
	return s
}

// fillHoles seats newcomers in the holes first, and then moves the last ones
// into holes that remain: as few slots as possible change.
func (s *seating) fillHoles() {
	for len(s.holes) > 0 && len(s.newcomers) > 0 {
		s.slots[s.holes[0]] = s.newcomers[0]
		s.holes, s.newcomers = s.holes[1:], s.newcomers[1:]
	}
	for len(s.holes) > 0 {
		last := len(s.slots) - 1
		if h := len(s.holes) - 1; s.holes[h] == last {
			s.holes = s.holes[:h]
		} else {
			s.slots[s.holes[0]] = s.slots[last]
			s.holes = s.holes[1:]
		}
		s.slots = s.slots[:last]
	}
}

// arrange returns the wanted endpoints, which are sorted, in slots that follow
// from the old ones. The result is old itself if nothing changed.
func arrange(old, wanted []proxy.Endpoint) []proxy.Endpoint {
	if len(wanted) == 0 {
		return nil
	}
	s := seat(old, wanted)
	s.fillHoles()
	slots := append(s.slots, s.newcomers...)
	if slices.Equal(slots, old) {
		return old
	}
	if len(slots) < cap(slots) {
		return slices.Clone(slots) // rows live long: no room for endpoints that left
	}
	return slots
}

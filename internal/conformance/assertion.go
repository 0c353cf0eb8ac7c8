package conformance

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// assert checks one assertion about the backends that the clients got.
func (t *telling) assert(word string, got, before backends, want Expect) error {
	share := map[netip.AddrPort]int{}
	total, moved := 0, false
	for src, list := range got {
		for _, b := range list {
			share[b]++
			total++
		}
		same := len(before[src]) > 0 && !slices.ContainsFunc(list, func(b netip.AddrPort) bool { return b != before[src][0] })
		moved = moved || !same
		switch {
		case word == "one_backend" && len(slices.Compact(slices.Clone(list))) != 1:
			return fmt.Errorf("client %v got %v", src, list)
		case word == "same_as" && !same:
			return fmt.Errorf("client %v had %v and got %v", src, before[src], list)
		case word == "never_as" && slices.Contains(list, before[src][0]):
			return fmt.Errorf("client %v still got %v", src, before[src][0])
		}
	}
	switch {
	case word == "moved_from" && !moved:
		return fmt.Errorf("all %d clients got the same as before", len(got))
	case word == "all_backends" && len(share) != len(want.To):
		return fmt.Errorf("only %v were seen", share)
	case word == "even":
		return even(share, total)
	}
	return nil
}

// even checks that shares differ by no more than chance allows: five times the
// standard deviation happens less than once in a million.
func even(share map[netip.AddrPort]int, total int) error {
	p := 1 / float64(len(share))
	tolerance := 5 * math.Sqrt(float64(total)*p*(1-p))
	for b, n := range share {
		if math.Abs(float64(n)-p*float64(total)) > tolerance {
			return fmt.Errorf("%v got %d of %d connections: %v", b, n, total, share)
		}
	}
	return nil
}

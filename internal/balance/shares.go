package balance

import "sluice/internal/proxy"

// shares is the sum of the weights of a list, for choosing an endpoint in proportion to its weight.
type shares struct {
	divisor, total uint64 // the greatest common divisor of the weights; their sum, divided by it
	// Multiples of step modulo total visit every number below total, and soon move on to another
	// endpoint, so that an endpoint with a high weight does not get its turns in a row.
	step uint64
}

func newShares(list []proxy.Endpoint) *shares {
	s := &shares{}
	for _, e := range list {
		s.divisor = gcd(s.divisor, uint64(e.Share()))
		s.total += uint64(e.Share())
	}
	s.total /= s.divisor
	for s.step = max(1, s.total*618/1000); gcd(s.step, s.total) != 1; s.step++ {
	}
	return s
}

// gcd returns the greatest common divisor.
func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// of returns the endpoint that a number falls to: each has as many numbers below total as its
// weight, divided by divisor.
func (s *shares) of(list []proxy.Endpoint, number uint64) proxy.Endpoint {
	number %= s.total
	if s.total == uint64(len(list)) { // all weights are equal
		return list[number]
	}
	for _, e := range list {
		own := uint64(e.Share()) / s.divisor
		if number < own {
			return e
		}
		number -= own
	}
	panic("weights do not add up to their sum")
}

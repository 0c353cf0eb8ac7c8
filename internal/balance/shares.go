package balance

import "sluice/internal/proxy"

// shares says how much the endpoints of a list count.
type shares struct {
	divisor, total uint64
	// step goes through all numbers below total, and soon from one endpoint to
	// another, so that those that count much do not get their turns in a row.
	step uint64
}

func newShares(list []proxy.Endpoint) *shares {
	s := &shares{}
	for _, e := range list {
		s.divisor = divisor(s.divisor, uint64(e.Share()))
		s.total += uint64(e.Share())
	}
	s.total /= s.divisor
	for s.step = max(1, s.total*618/1000); divisor(s.step, s.total) != 1; s.step++ {
	}
	return s
}

// divisor returns the greatest common divisor.
func divisor(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// of returns the endpoint that a number falls to, each having as many numbers as
// its share.
func (s *shares) of(list []proxy.Endpoint, number uint64) proxy.Endpoint {
	number %= s.total
	if s.total == uint64(len(list)) { // they count the same
		return list[number]
	}
	for _, e := range list {
		own := uint64(e.Share()) / s.divisor
		if number < own {
			return e
		}
		number -= own
	}
	panic("shares do not add up")
}

package figures

import (
	"math"
	"slices"
)

// Bound is a figure, or what it is more than.
type Bound struct {
	Value Seconds
	More  bool // the true figure is larger
	None  bool // there is none
}

// String returns the figure in words.
func (b Bound) String() string {
	switch {
	case b.None:
		return "no sample"
	case b.More:
		return "> " + b.Value.String()
	default:
		return b.Value.String()
	}
}

// percentile returns the smallest sample that so many per cent are not above.
// Waiting is how long the last one had taken when nobody waited for it any
// more: it counts if that was longer than all others took.
func percentile(samples []Seconds, waiting Seconds, percent float64) Bound {
	all := slices.Sorted(slices.Values(samples))
	if waiting > 0 && (len(all) == 0 || waiting > all[len(all)-1]) {
		all = append(all, waiting)
	} else {
		waiting = 0
	}
	if len(all) == 0 {
		return Bound{None: true}
	}
	i := max(0, int(math.Ceil(float64(len(all))*percent/100))-1)
	return Bound{Value: all[i], More: waiting > 0 && i == len(all)-1}
}

// Percentile returns a percentile of samples, 0 if there are none.
func Percentile(samples []Seconds, percent float64) Seconds {
	return percentile(samples, 0, percent).Value
}

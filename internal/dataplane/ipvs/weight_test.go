package ipvs

import (
	"slices"
	"testing"

	"sluice/internal/kernel/ipvs"
)

// TestFitBuckets: scheduler sh has 256 buckets for all real servers.
func TestFitBuckets(t *testing.T) {
	for _, tt := range []struct{ in, want []uint32 }{
		{[]uint32{1, 2, 3}, []uint32{1, 2, 3}},
		{[]uint32{65535, 65535, 65535, 65535}, []uint32{64, 64, 64, 64}},
		{[]uint32{65535, 1}, []uint32{255, 1}},
		{[]uint32{300, 100}, []uint32{192, 64}},
		{slices.Repeat([]uint32{1}, 300), slices.Repeat([]uint32{1}, 300)},
	} {
		var reals []ipvs.Real
		for _, w := range tt.in {
			reals = append(reals, ipvs.Real{Weight: w})
		}
		fitBuckets(reals)
		for i, r := range reals {
			if r.Weight != tt.want[i] {
				t.Errorf("weights %v: number %d became %d; want %d", tt.in, i, r.Weight, tt.want[i])
				break
			}
		}
	}
}

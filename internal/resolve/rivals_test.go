package resolve

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// rival is the nth of many Services that want one address; the first one has it.
func rival(n, clusterIP int) *v1.Service {
	return serviceOf(fmt.Sprintf("ns/rival-%05d", n), fmt.Sprintf("10.96.%d.%d", clusterIP>>8, clusterIP&255), externalIPs("203.0.113.1"))
}

// TestCostOfRivals lets very many Services claim the same address. A change of one that
// does not own it costs the same among few and among many, a change of the owner updates
// all problems, and no memory is kept when all are gone.
func TestCostOfRivals(t *testing.T) {
	const few, many = 2_500, 10_000
	var one, owner [2]float64
	for i, n := range []int{few, many} {
		r := New(Settings{})
		for k := range n {
			add(t, r, rival(k, k))
		}
		began := time.Now()
		step := func() (found, resolved int) {
			r.Update()
			f, m := r.TakeProblems()
			return len(f), len(m)
		}
		if found, _ := step(); found != n-1 || r.ProblemCount() != n-1 {
			t.Errorf("%d problems of %d Services", found, n)
		}
		first := time.Since(began)
		turn := 0
		one[i] = bytesPerRun(20, func() {
			turn++
			add(t, r, rival(100, n+turn))
			if found, resolved := step(); found+resolved > 0 {
				t.Errorf("%d problems found and %d resolved by a change that concerns no other", found, resolved)
			}
		})
		turn = 0
		owner[i] = bytesPerRun(5, func() {
			remove(t, r, rival(turn, turn))
			turn++
			if found, resolved := step(); found != n-1-turn || resolved != n-turn {
				t.Errorf("%d problems found and %d resolved when owner %d of %d went", found, resolved, turn, n)
			}
		})
		for k := range n {
			remove(t, r, rival(k, k))
		}
		step()
		if left := len(r.claims.owners) + len(r.claims.contested) + len(r.claims.changed) + r.ProblemCount() + len(r.entries); left > 0 {
			t.Errorf("%d things are kept of Services that are gone", left)
		}
		t.Logf("%d Services want one address: all at once in %v, %.0f bytes allocated when one changes, %.0f when the owner goes",
			n, first.Round(time.Millisecond), one[i], owner[i])
	}
	if one[1] > 1.2*one[0] {
		t.Errorf("%.0f bytes for one rival of %d, %.0f of %d; want the same", one[1], many, one[0], few)
	}
	if ratio := owner[1] / owner[0]; ratio > 1.2*many/few {
		t.Errorf("the owner's end allocates %.1f times as much at %d Services as at %d", ratio, many, few)
	}
}

// bytesPerRun returns how many bytes f allocates, on average.
func bytesPerRun(runs int, f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc-before.TotalAlloc) / float64(runs)
}

package ebpf_test

import (
	"testing"

	"sluice/internal/proxy"
	"sluice/internal/proxy/proxytest"
)

// TestCostOfRowsWithoutRoom checks that the number of writes does not depend on how many rows
// the maps have no room for, whether the maps are empty before or full of other rows.
func TestCostOfRowsWithoutRoom(t *testing.T) {
	const room, each = 300, 3
	h := newHost(t)
	h.start(map[string]uint32{"endpoints": room})
	rows := func(first, n int) (out []*proxy.ServicePort) {
		for i := range n {
			out = append(out, costRow(first+i, proxy.TCP, 1, 2, 3))
		}
		return out
	}
	written := func(rows []*proxy.ServicePort, left int) int {
		t.Helper()
		h.d.Writes()
		h.must(h.sync(rows...))
		if got := int(proxytest.Values(t.Context(), h.d, "ebpf_rows_left")[""]); got != left {
			t.Errorf("%d of %d rows are served by the rules only; want %d", got, len(rows), left)
		}
		return h.d.Writes()
	}
	for _, more := range []int{100, 400} {
		all := rows(0, room/each+more)
		if n, atMost := written(all, more), room+2*len(all); n > atMost {
			t.Errorf("%d rows too many: %d entries written; want at most %d", more, n, atMost)
		}
		if n := written(all, more); n > 0 {
			t.Errorf("%d rows too many: %d entries written by the second sync; want none", more, n)
		}
		written(nil, 0)
	}
	written(rows(0, room/each), 0)
	if n, atMost := written(rows(1000, room/each), 0), 10*room; n > atMost {
		t.Errorf("all rows replaced: %d entries written; want at most %d", n, atMost)
	}
	t.Run("Apply", func(t *testing.T) {
		all := rows(0, room/each)
		written(all, 0)
		step := &proxy.Delta{}
		for _, sp := range rows(2000, 400) {
			step.Upserts = append(step.Upserts, proxy.Upsert{New: sp})
		}
		if err := h.lab.Node().Do(func() error { return proxytest.Apply(h.Context(), h.d, step) }); err != nil {
			t.Fatal(err)
		}
		if n := h.d.Writes(); n != 400 {
			t.Errorf("%d entries written; want 400, a frontend for each row", n)
		}
	})
}

package faults

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/conformance/reliability"
	"sluice/test/daemon/testbed"
)

// TestRestartsWriteNothing repeatedly kills a daemon while nothing changes. The next one finds all
// 200 Services correct and writes nothing to nf_tables, which has the rules of all modes.
func TestRestartsWriteNothing(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			var many []string
			for i := range 200 {
				many = append(many, testbed.Service(fmt.Sprintf("many-%d", i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 30, 1, byte(i)}), 80), testbed.PodA, testbed.PodB))
			}
			bed.Write("many.yaml", strings.Join(many, "---\n"))
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			d := bed.Start(nil)
			bed.AwaitSync()
			load := bed.Load(2, testbed.ClusterIP)
			w := countWrites(bed)
			var repairs []time.Duration
			var most []string
			restarts := max(*kills/5, 1)
			for range restarts {
				killed := time.Now()
				d.End(syscall.SIGKILL)
				w.taken()
				d = bed.Start(nil)
				d.AwaitFirstSync()
				repairs = append(repairs, d.Synced().Sub(killed))
				bed.AwaitSync()
				if written := w.taken(); len(written) > len(most) {
					most = written
				}
			}
			made, failed := load()
			if len(most) > 0 {
				t.Errorf("%d objects were written, want none: %.10q", len(most), most)
			}
			note := fmt.Sprintf("a restart writes %d rules, elements and chains", len(most))
			if mode == "userspace" {
				note += "; the daemon carries the connections, and those of the moment when none runs fail"
			} else {
				bed.Report(failed)
			}
			reliability.Record(t, reliability.Result{
				Fault: "daemon killed (SIGKILL) while nothing changes", Mode: mode, Tried: restarts, Requests: made, Failed: len(failed), Repairs: repairs,
				Note: note,
			})
		})
	}
}

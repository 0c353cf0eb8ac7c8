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

// TestRestartsWriteNothing repeatedly kills or stops a daemon while nothing changes. The next one
// finds all 200 Services correct and, after a kill, writes nothing to nf_tables, which has the rules of
// all modes.
// No connection fails, and an open one stays open, but for mode userspace, whose connections end
// with the daemon.
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
			ends := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}
			if mode == "userspace" { // which serves open connections before it ends
				ends = ends[1:]
			}
			open := bed.OpenEcho()
			load := bed.Load(2, testbed.ClusterIP)
			w := countWrites(bed)
			var repairs []time.Duration
			var most []string
			restarts := max(*kills/5, 1)
			for i := range restarts {
				killed := time.Now()
				end := ends[i%len(ends)]
				if code := d.End(end); end == syscall.SIGTERM && code != 0 {
					t.Errorf("exit code %d after SIGTERM", code)
				}
				w.taken()
				d = bed.Start(nil)
				d.AwaitFirstSync()
				repairs = append(repairs, d.Synced().Sub(killed))
				bed.AwaitSync()
				// A daemon that is told to stop has its rules yield to another proxy, which the next one undoes.
				if written := w.taken(); end == syscall.SIGKILL && len(written) > len(most) {
					most = written
				}
			}
			made, failed := load()
			if len(most) > 0 {
				t.Errorf("%d objects were written, want none: %.10q", len(most), most)
			}
			note := fmt.Sprintf("a restart after SIGKILL writes %d rules, elements and chains", len(most))
			if mode == "userspace" {
				note += "; the daemon carries the connections, and those of the moment when none runs fail"
			} else {
				bed.Report(failed)
				bed.WantAlive(open, "after the last restart")
			}
			d.End(ends[0])
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB)) // while nobody looks
			bed.Start(nil)
			testbed.Eventually(t, "what changed meanwhile", bed.Answers(testbed.ClusterIP, testbed.PodB))
			reliability.Record(t, reliability.Result{
				Fault: "daemon killed (SIGKILL) or stopped (SIGTERM) while nothing changes", Mode: mode, Tried: restarts, Requests: made, Failed: len(failed), Repairs: repairs,
				Note: note,
			})
		})
	}
}

package daemon

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/conformance/reliability"
)

// TestRestartsWriteNothing repeatedly kills a daemon while nothing changes. The next one finds all
// 200 Services correct and writes nothing to nf_tables, which has the rules of all modes.
func TestRestartsWriteNothing(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			s := newSiteFor(t, mode)
			var many []string
			for i := range 200 {
				many = append(many, service(fmt.Sprintf("many-%d", i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 30, 1, byte(i)}), 80), podA, podB))
			}
			s.write("many.yaml", strings.Join(many, "---\n"))
			s.write("web.yaml", service("web", clusterIP, podA))
			d := s.start(nil)
			s.await()
			load := s.load(2, clusterIP)
			w := s.countWrites()
			var repairs []time.Duration
			var most []string
			restarts := max(*kills/5, 1)
			for range restarts {
				killed := time.Now()
				d.end(syscall.SIGKILL)
				w.taken()
				d = s.start(nil)
				eventually(t, "the first sync", func() bool { return !d.synced().IsZero() })
				repairs = append(repairs, d.synced().Sub(killed))
				s.await()
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
				s.report(failed)
			}
			reliability.Record(t, reliability.Result{
				Fault: "daemon killed (SIGKILL) while nothing changes", Mode: mode, Tried: restarts, Requests: made, Failed: len(failed), Repairs: repairs,
				Note: note,
			})
		})
	}
}

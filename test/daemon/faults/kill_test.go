package faults

import (
	"flag"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/test/daemon/testbed"
)

// kills is how often a daemon is killed in each mode.
var kills = flag.Int("kills", 25, "kill a daemon so `OFTEN` in each mode, at random moments")

// TestKills kills daemons at random moments of their start, their first sync and
// what follows, while the endpoint of one Service is replaced without end, another
// Service comes and goes, and connections are made all the time. Whatever was written by
// then, no connection may fail and an open one stays open; the next daemon makes
// all of it right. In mode userspace connections are the daemon's, and end with it: there
// none may fail that was not under way while there was no daemon.
func TestKills(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			d := bed.Start(nil)
			bed.AwaitSync()
			open := bed.OpenEcho()
			load := bed.Load(4, testbed.ClusterIP)
			change := bed.ReplaceEndpoints()
			var gaps []testbed.Gap
			for range *kills {
				testbed.Pause(t, rand.N(traffic.Scaled(300*time.Millisecond)))
				gaps = append(gaps, testbed.Gap{From: time.Now()})
				d.End(syscall.SIGKILL)
				d = bed.Start(nil)
				gaps[len(gaps)-1].Until = d.Synced
			}
			change()
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
			testbed.Eventually(t, "what was written last", bed.Answers(testbed.ClusterIP, testbed.PodB))
			made, failed := load()
			if made < *kills {
				t.Error("there was hardly a connection")
			}
			if mode == "userspace" {
				bed.Report(testbed.Outside(failed, gaps...))
			} else {
				bed.Report(failed)
				bed.WantAlive(open, "after the last kill")
			}
			bed.AwaitFreshRules(mode)
			r := reliability.Result{Fault: "daemon killed (SIGKILL)", Mode: mode, Tried: *kills, Requests: made, Failed: len(failed)}
			if mode == "userspace" {
				r.Note = "the daemon carries the connections: all that failed were under way while none ran"
			}
			reliability.Record(t, r)
		})
	}
}

package foreign

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/test/daemon/testbed"
)

// flushes is how often rules are flushed while the daemon writes. After many more,
// repairs come too seldom to be waited for.
const flushes = 6

// flushOf takes all rules of a mode away.
var flushOf = map[string]string{
	"rules": "nft delete table ip TABLE", "ipvs": "nft delete table ip TABLE; ipvsadm -C",
	"iptables": habits + "for t in nat filter mangle; do iptables-nft -t $t -F; done",
}

// TestFlushDuringWrites flushes all rules at random moments while endpoints are replaced
// continuously, so that some flushes happen during a write.
func TestFlushDuringWrites(t *testing.T) {
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			if mode != "ebpf" { // for which the process is in a cgroup of its own, with all that it starts
				t.Parallel()
			}
			bed := testbed.NewFor(t, mode)
			seed := uint64(time.Now().UnixNano())
			random := rand.New(rand.NewPCG(seed, 0))
			t.Logf("seed %d", seed)
			other := netip.MustParseAddrPort("172.30.0.99:80")
			bed.Write("other.yaml", testbed.Service("other", other, testbed.PodA))
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Start(nil)
			testbed.Eventually(t, "the Service", bed.Answers(other, testbed.PodA))
			change := bed.ReplaceEndpoints()
			var took []time.Duration
			for range flushes {
				testbed.Pause(t, time.Duration(random.Int64N(int64(200*time.Millisecond))))
				bed.Run("sh", "-ec", scriptFor(bed, mode, flushOf))
				began := time.Now()
				testbed.Eventually(t, "the Service after a flush", bed.Answers(other, testbed.PodA))
				took = append(took, time.Since(began))
			}
			change()
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodB))
			testbed.Eventually(t, "what was written last", bed.Answers(testbed.ClusterIP, testbed.PodB))
			bed.AwaitFreshRules(mode)
			reliability.Record(t, reliability.Result{Fault: "all rules flushed while the daemon writes", Mode: mode, Tried: flushes, Repairs: took})
		})
	}
}

// triedRepair is where the log tells of a repair, or of one that failed because the rules were gone
// again when mode iptables verified them.
var triedRepair = regexp.MustCompile(`(?m)^I.*"Synced" full=true|^E.*"Sync failed and is retried.*verify the rules that were written`)

// quarrel is where it tells that another process removes them again and again.
var quarrel = regexp.MustCompile("Another process keeps changing our rules|verify the rules that were written")

// TestSecondWriter removes our rules from another process whenever they were repaired: repairs
// become less frequent, and soon after it stops everything is correct.
func TestSecondWriter(t *testing.T) {
	const repairs = 10 // after 0, 0.1, 0.2, 0.4, 0.8 and 1.6 s, on a slow machine 3.2 and 6.4, and what a failed one adds
	lasts := traffic.Scaled(2 * time.Second)
	for _, mode := range testbed.Modes {
		t.Run(mode, func(t *testing.T) {
			if mode != "ebpf" { // for which the process is in a cgroup of its own, with all that it starts
				t.Parallel()
			}
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			d := bed.Start(nil)
			testbed.Eventually(t, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
			bed.AwaitSync()
			logged := awaitFirstSyncLogged(bed, d)
			t.Run("fight", func(t *testing.T) {
				bed := bed.For(t)
				runUntilEnd(bed, "sh -c '"+strings.ReplaceAll(scriptFor(bed, mode, flushOf), "'", "")+"' 2>/dev/null; sleep 0.01")
				testbed.Pause(t, lasts)
			})
			began := time.Now()
			n := len(triedRepair.FindAllString(d.Log()[logged:], -1))
			if t.Logf("%d repairs in %v", n, lasts); n == 0 || n > repairs {
				t.Errorf("%d repairs in %v, want at most %d", n, lasts, repairs)
			}
			if !quarrel.MatchString(d.Log()) {
				t.Error("the log does not say that it is a quarrel")
			}
			bed.AwaitFreshRules(mode)
			testbed.Eventually(t, "the Service after it", bed.Answers(testbed.ClusterIP, testbed.PodA))
			reliability.Record(t, reliability.Result{
				Fault: fmt.Sprintf("a second writer removes our rules without end for %.0f s", lasts.Seconds()), Mode: mode, Tried: 1,
				Repairs: []time.Duration{time.Since(began)}, Note: fmt.Sprintf("%d repairs in that time", n),
			})
		})
	}
}

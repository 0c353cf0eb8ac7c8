package foreign

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/internal/conformance/reliability"
	"sluice/internal/conformance/traffic"
	"sluice/test/daemon/testbed"
)

// earlierRule is what another program puts before our rules.
type earlierRule struct {
	fault  string            // as an operator would say it
	script map[string]string // by mode, what the shell is told; WEB is the address of a Service, POD an endpoint that is not its
	by     netip.Addr        // who answers at WEB then; invalid: nobody
	told   string            // what sluice explain --trace says; empty: nothing is in the way
}

// chainBefore has a chain at prerouting, of a priority that comes before ours, with a rule.
func chainBefore(kind, priority, rule string) string {
	return fmt.Sprintf("nft 'add table ip early; add chain ip early c { type %s hook prerouting priority %s; }; add rule ip early c %s'", kind, priority, rule)
}

// traceOthers follows packets, as nft's monitor does, that have an endpoint already.
const traceOthers = "nft 'add table ip early; add chain ip early c { type filter hook postrouting priority -160; }; " +
	"add rule ip early c ip daddr POD limit rate 2000/second meta nftrace set 1'"

const bypassed = "BYPASSED: no rule of the service proxy that chooses an endpoint saw the packet"

var earlierRules = []earlierRule{
	{
		fault: "others' rule before ours sends a Service's packets elsewhere", by: testbed.PodB, told: bypassed,
		script: either(chainBefore("nat", "-110", "ip daddr WEB tcp dport 80 dnat to POD:8080"),
			"iptables-nft -t nat -I PREROUTING -d WEB -p tcp --dport 80 -j DNAT --to POD:8080"),
	},
	{fault: "others' nat chain before ours accepts a Service's packets", by: testbed.PodA, script: in("rules", chainBefore("nat", "-110", "ip daddr WEB accept"))},
	{
		fault: "others' rule before ours, in the same nat chain, accepts a Service's packets", told: bypassed,
		script: in("iptables", "iptables-nft -t nat -I PREROUTING -d WEB -j ACCEPT"),
	},
	{
		fault: "others' rule before ours has a Service's packets not tracked", told: bypassed,
		script: either(chainBefore("filter", "raw", "ip daddr WEB notrack"), "iptables-nft -t raw -I PREROUTING -d WEB -j CT --notrack"),
	},
	{
		fault: "others' rule before ours drops a Service's packets", told: "DROPPED by a rule of another program, in ip",
		script: either(chainBefore("filter", "-160", "ip daddr WEB drop"), "iptables-nft -t mangle -I PREROUTING -d WEB -j DROP"),
	},
	{
		fault: "others' rule before ours accepts a Service's packets", by: testbed.PodA,
		script: either(chainBefore("filter", "-160", "ip daddr WEB accept"), "iptables-nft -t mangle -I PREROUTING -d WEB -j ACCEPT"),
	},
	{
		fault: "others trace packets of another Service", by: testbed.PodA,
		script: either(traceOthers, traceOthers),
	},
	{
		fault: "others' rule before ours marks a Service's packets", by: testbed.PodA,
		script: either(chainBefore("filter", "-160", "ip daddr WEB meta mark set 1"), "iptables-nft -t mangle -I PREROUTING -d WEB -j MARK --set-mark 1"),
	},
}

// TestRulesBeforeOurs adds rules of another program before ours. They win for the Service that they
// match; neither they nor our rules are changed, no connection to another Service fails, and sluice
// explain names the obstacle.
func TestRulesBeforeOurs(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables", testbed.Legacy, "userspace"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			bed := testbed.NewFor(t, mode)
			bed.Write("web.yaml", testbed.Service("web", testbed.ClusterIP, testbed.PodA))
			bed.Write("other.yaml", testbed.Service("other", testbed.SecondIP, testbed.PodB))
			for _, c := range earlierRules {
				if scriptFor(bed, mode, c.script) != "" && (mode != "userspace" || c.told == "") { // whose rules are at another hook than nat's
					t.Run(c.fault, func(t *testing.T) {
						bed := bed.For(t)
						follows(bed, mode, c)
					})
				}
			}
		})
	}
}

// follows runs a daemon, and another program that comes before its rules.
func follows(bed *testbed.Testbed, mode string, c earlierRule) {
	clearRules(bed, mode)
	d := bed.Start(nil)
	defer d.End(syscall.SIGTERM)
	testbed.Eventually(bed.T, "the Service", bed.Answers(testbed.ClusterIP, testbed.PodA))
	bed.AwaitSync() // by then it watches
	load, logged := bed.Load(1, testbed.SecondIP), awaitFirstSyncLogged(bed, d)
	bed.Run("sh", "-ec", strings.NewReplacer("WEB", testbed.ClusterIP.Addr().String(), "POD", testbed.PodB.String()).Replace(scriptFor(bed, mode, c.script)))
	theirs := otherRules(bed)
	if by, fate := bed.Ask(testbed.ClientIP, testbed.ClusterIP); (fate == traffic.Answered) != c.by.IsValid() || by != c.by {
		bed.T.Errorf("%v by %v, want an answer by %v", fate, by, c.by)
	}
	if mode != testbed.Legacy { // whose rules cannot be followed
		tellsWhy(bed, c.told)
	}
	bed.AwaitFreshRules(mode)
	testbed.Pause(bed.T, 500*time.Millisecond) // in which all is looked at again
	if seen := foreignLine.FindAllString(d.Log()[logged:], -1); len(seen) > 0 || fullSync.MatchString(d.Log()[logged:]) {
		bed.T.Errorf("rules are repaired that nobody changed: %q", seen)
	}
	if now := otherRules(bed); now != theirs {
		bed.T.Errorf("what is others' was\n%s\nand is\n%s", theirs, now)
	}
	made, failed := load()
	bed.Report(failed)
	reliability.Record(bed.T, reliability.Result{
		Fault: c.fault, Mode: mode, Tried: 1, Requests: made, Failed: len(failed), Note: "the requests are to another Service, which the rule is not about",
	})
}

// tellsWhy follows a packet of the client's, and wants to be told what is in its way.
func tellsWhy(bed *testbed.Testbed, want string) {
	bed.T.Helper()
	said, code := bed.TraceClient()
	said = strings.Join(strings.Fields(said), " ")
	finding := strings.Contains(said, "BYPASSED") || strings.Contains(said, "DROPPED")
	if !strings.Contains(said, want) || finding != (want != "") || code != map[bool]int{true: 1}[finding] {
		bed.T.Errorf("exit %d, want %q: %s", code, want, said)
	}
}

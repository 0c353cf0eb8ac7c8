package statusapi

import "testing"

// TestVerdict checks that the worst that is known of a node is the verdict, and that only a
// node on which nothing needs attention is in force.
func TestVerdict(t *testing.T) {
	n := Node{Health: Health{Healthy: true}, Sync: Sync{Done: true}}
	for _, tt := range []struct {
		change  func()
		level   Level
		state   NodeState
		text    string
		inForce bool
	}{
		{func() {}, LevelGood, NodeInForce, "All in force", true},
		{func() { n.Counts.Unreachable = 2 }, LevelWarning, NodeNeedsAttention, "All in force, but 2 Services cannot be reached", true},
		{
			func() { n.Doubts = []Doubt{{Severity: DoubtWarning}} }, LevelWarning, NodeNeedsAttention,
			"All in force, but 2 Services cannot be reached and 1 doubt", true,
		},
		{
			func() { n.Counts.Problems = 3 }, LevelWarning, NodeNeedsAttention,
			"All in force, but 2 Services cannot be reached, 3 problems and 1 doubt", true,
		},
		{func() { n.Counts.Pending = 1 }, LevelWarning, NodePending, "1 port pending", false},
		{func() { n.Health = Health{Reason: "no sync"} }, LevelError, NodeNotHealthy, "NOT HEALTHY: no sync", false},
		{
			func() { n.Doubts = append(n.Doubts, Doubt{Severity: DoubtError, Reason: "a table is gone"}) }, LevelError, NodeInDoubt,
			"IN DOUBT: a table is gone", false,
		},
		{func() { n.Counts.Refused = 2 }, LevelError, NodeRefused, "2 ports refused by the kernel, 1 pending", false},
		{func() { n.Sync.Error = "no memory" }, LevelError, NodeSyncFailing, "SYNC FAILS: no memory", false},
		{func() { n.Sync = Sync{Reason: "Services are not known yet"} }, LevelError, NodeNotSynced, "NOT SYNCED YET: Services are not known yet", false},
	} {
		tt.change()
		if got, want := n.Judge(), (Verdict{tt.level, tt.state, tt.text}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		if n.InForce() != tt.inForce || n.Troubled() != (tt.level != LevelGood) {
			t.Errorf("%s: in force %t, needs attention %t", tt.text, n.InForce(), n.Troubled())
		}
	}
}

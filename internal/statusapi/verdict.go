package statusapi

import (
	"cmp"
	"fmt"
	"slices"
)

// Verdict is the worst that is known of a node, in a word and in a line. All clients show
// the same.
type Verdict struct {
	Level Level     `json:"level"`
	State NodeState `json:"state"`
	Text  string    `json:"text"`
}

// Level says how bad a verdict is.
type Level string

const (
	LevelGood    Level = "Good"
	LevelWarning Level = "Warning"
	LevelError   Level = "Error"
)

// NodeState is a machine-readable word for a verdict. States never change; there may be
// new ones.
type NodeState string

// The states, the worst first. Each but the last needs attention.
const (
	NodeNotSynced      NodeState = "NotSynced"      // no sync has succeeded since the start
	NodeSyncFailing    NodeState = "SyncFailing"    // the last sync failed
	NodeRefused        NodeState = "Refused"        // the kernel refuses service ports
	NodeInDoubt        NodeState = "InDoubt"        // a doubt is an error
	NodeNotHealthy     NodeState = "NotHealthy"     // the health server says so
	NodePending        NodeState = "Pending"        // the kernel does not have the newest version of service ports yet
	NodeNeedsAttention NodeState = "NeedsAttention" // Services cannot be reached, objects have problems, or there are warnings
	NodeInForce        NodeState = "InForce"        // everything is in force, and nothing needs attention
)

// Judge returns the verdict on the node.
func (n *Node) Judge() Verdict {
	c := &n.Counts
	severe := slices.IndexFunc(n.Doubts, func(d Doubt) bool { return d.Severity == DoubtError })
	switch {
	case !n.Sync.Done && n.Sync.Error == "":
		return Verdict{LevelError, NodeNotSynced, "NOT SYNCED YET: " + cmp.Or(n.Sync.Reason, "the first sync is under way")}
	case n.Sync.Error != "":
		return Verdict{LevelError, NodeSyncFailing, "SYNC FAILS: " + n.Sync.Error}
	case c.Refused > 0:
		return Verdict{LevelError, NodeRefused, fmt.Sprintf("%s refused by the kernel, %d pending", count(c.Refused, "port"), c.Pending)}
	case severe >= 0:
		return Verdict{LevelError, NodeInDoubt, "IN DOUBT: " + n.Doubts[severe].Reason}
	case !n.Health.Healthy:
		return Verdict{LevelError, NodeNotHealthy, "NOT HEALTHY: " + n.Health.Reason}
	case c.Pending > 0:
		return Verdict{LevelWarning, NodePending, count(c.Pending, "port") + " pending"}
	}
	return n.judgeAttention()
}

// judgeAttention returns the verdict on a node on which everything is in force.
func (n *Node) judgeAttention() Verdict {
	var some []string
	if u := n.Counts.Unreachable; u > 0 {
		some = append(some, count(u, "Service")+" cannot be reached")
	}
	if p := n.Counts.Problems; p > 0 {
		some = append(some, count(p, "problem"))
	}
	if d := len(n.Doubts); d > 0 {
		some = append(some, count(d, "doubt"))
	}
	if len(some) == 0 {
		return Verdict{LevelGood, NodeInForce, "All in force"}
	}
	text := some[0]
	for i, s := range some[1:] {
		if text += ", "; i == len(some)-2 {
			text = text[:len(text)-2] + " and "
		}
		text += s
	}
	return Verdict{LevelWarning, NodeNeedsAttention, "All in force, but " + text}
}

// Troubled reports whether anything on the node needs attention.
func (n *Node) Troubled() bool { return n.Judge().Level != LevelGood }

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"sluice/internal/statusapi"
)

// nodesListed is up to how many nodes have a line each if nobody asks for all of
// them; of more, those that agree share one.
const nodesListed = 20

// NodeAnswer is what came of asking the daemon of a node.
type NodeAnswer[T any] struct {
	Node   string `json:"node"`
	Answer *T     `json:"answer,omitempty"`
	Error  string `json:"error,omitempty"` // why there is none

	Said bool `json:"-"` // the error is the daemon's own, and as good as an answer
}

// NodeList is what the daemons of many nodes answered, for programs.
type NodeList[T any] struct {
	Items []NodeAnswer[T] `json:"items"`
}

// Nodes shows how the daemons of many nodes are: a line for each, or if they are
// many one for all that agree and one for each that differs.
func Nodes(w io.Writer, all []NodeAnswer[statusapi.Node], o StatusOptions) error {
	return writeAll(w, func(w io.Writer) error { return writeNodes(w, all, o) })
}

func writeNodes(w io.Writer, all []NodeAnswer[statusapi.Node], o StatusOptions) error {
	switch o.Output {
	case "json", "yaml":
		return encode(w, o.Output, NodeList[statusapi.Node]{all})
	case "name":
		for _, a := range all {
			fmt.Fprintln(w, Clean(a.Node))
		}
		return nil
	}
	wide := o.Output == "wide"
	heads := []string{"NODE", "MODE", "HEALTH", "SERVICES", "PENDING", "REFUSED", "PROBLEMS", "VERSION"}
	if wide {
		heads = append(heads, "ENDPOINTS", "UP", "LAST SYNC")
	}
	t := newTable(w, heads...)
	answers := opinions(all, nodeFacts)
	var common []fact
	if len(all) > nodesListed && !o.All && !wide {
		common = majority(answers)
		t.line(append([]string{plural(countOf(answers, common), "node", "nodes")}, values(common)...)...)
	}
	for _, a := range all {
		if a.Answer == nil {
			continue
		}
		facts := nodeFacts(a.Answer)
		if common != nil && slices.Equal(facts, common) {
			continue
		}
		cells := append([]string{a.Node}, values(facts)...)
		if wide {
			cells = append(cells, thousands(a.Answer.Counts.Endpoints), age(a.Answer.Now, a.Answer.Started), lastSync(a.Answer))
		}
		t.line(cells...)
	}
	if len(answers) > 0 {
		if err := t.Flush(); err != nil {
			return err
		}
	}
	writeTroubles(w, all)
	WriteSilent(w, all)
	return nil
}

// nodeFacts are what the daemons of healthy nodes have in common.
func nodeFacts(n *statusapi.Node) []fact {
	health := "healthy"
	switch {
	case !n.Health.Healthy:
		health = "NOT HEALTHY"
	case !n.Sync.Done:
		health = "NOT SYNCED"
	case n.Sync.Error != "":
		health = "SYNC FAILS"
	}
	return []fact{
		{"mode", n.Mode},
		{"health", health},
		{"Services", thousands(n.Counts.Services)},
		{"pending", thousands(n.Counts.Pending)},
		{"refused", thousands(n.Counts.Refused)},
		{"problems", thousands(n.Counts.Problems)},
		{"version", n.Version},
	}
}

func lastSync(n *statusapi.Node) string {
	if n.Sync.Last == nil {
		return "-"
	}
	return age(n.Now, *n.Sync.Last) + " ago"
}

// writeTroubles says why nodes are not healthy, as no column has room for it.
func writeTroubles(w io.Writer, all []NodeAnswer[statusapi.Node]) {
	head := "\nNOT AS IT SHOULD BE:"
	for _, a := range all {
		if a.Answer == nil || a.Answer.Health.Healthy && a.Answer.Sync.Done && a.Answer.Sync.Error == "" {
			continue
		}
		why := []string{}
		if !a.Answer.Health.Healthy {
			why = append(why, a.Answer.Health.Reason)
		}
		if !a.Answer.Sync.Done || a.Answer.Sync.Error != "" {
			why = append(why, syncLine(a.Answer))
		}
		if head != "" {
			fmt.Fprintln(w, head)
			head = ""
		}
		fmt.Fprintf(w, "  %s: %s\n", Clean(a.Node), Clean(strings.Join(why, "; ")))
	}
}

// WriteSilent names the nodes that could not be asked.
func WriteSilent[T any](w io.Writer, all []NodeAnswer[T]) {
	silent := slices.DeleteFunc(slices.Clone(all), func(a NodeAnswer[T]) bool { return a.Answer != nil || a.Said })
	if len(silent) == 0 {
		return
	}
	fmt.Fprintf(w, "\nNO ANSWER FROM %s:\n", strings.ToUpper(plural(len(silent), "node", "nodes")))
	for _, a := range silent {
		fmt.Fprintf(w, "  %s: %s\n", Clean(a.Node), Clean(a.Error))
	}
}

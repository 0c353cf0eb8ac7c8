package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"sluice/internal/statusapi"
)

// maxNodeLines is how many nodes have a line each by default. If there are more,
// nodes that agree share a line.
const maxNodeLines = 20

// NodeAnswer is the answer of a node's daemon, or the error.
type NodeAnswer[T any] struct {
	Node   string `json:"node"`
	Answer *T     `json:"answer,omitempty"`
	Error  string `json:"error,omitempty"` // why there is no answer

	FromDaemon bool `json:"-"` // the daemon itself returned Error, so it counts as an answer
}

// NodeList is the JSON and YAML output for many nodes.
type NodeList[T any] struct {
	Items []NodeAnswer[T] `json:"items"`
}

// Nodes writes the status of many nodes: a line for each or, if there are many, one
// for all that agree and one for each that differs.
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
	answers := factsOf(all, statusFacts)
	var common []fact
	if len(all) > maxNodeLines && !o.All && !wide {
		common = majority(answers)
		t.line(append([]string{plural(countOf(answers, common), "node", "nodes")}, values(common)...)...)
	}
	for _, a := range all {
		if a.Answer == nil {
			continue
		}
		facts := statusFacts(a.Answer)
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
	WriteUnanswered(w, all)
	return nil
}

// statusFacts returns the columns that are the same on all nodes of a healthy cluster.
func statusFacts(n *statusapi.Node) []fact {
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

// writeTroubles writes why nodes are not healthy or not synced, which is too long for
// a column.
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

// WriteUnanswered lists the nodes whose daemon did not answer, and why.
func WriteUnanswered[T any](w io.Writer, all []NodeAnswer[T]) {
	unanswered := slices.DeleteFunc(slices.Clone(all), func(a NodeAnswer[T]) bool { return a.Answer != nil || a.FromDaemon })
	if len(unanswered) == 0 {
		return
	}
	fmt.Fprintf(w, "\nNO ANSWER FROM %s:\n", strings.ToUpper(plural(len(unanswered), "node", "nodes")))
	for _, a := range unanswered {
		fmt.Fprintf(w, "  %s: %s\n", Clean(a.Node), Clean(a.Error))
	}
}

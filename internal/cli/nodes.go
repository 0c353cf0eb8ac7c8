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
	o.fitTerminal(w)
	return writeFitted(w, o.columns, func(w io.Writer) error { return writeNodes(w, all, o) })
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
	heads := []string{"NODE", "MODE", "STATE", "SERVICES", "PENDING", "REFUSED", "PROBLEMS", "VERSION"}
	if wide {
		heads = append(heads, "ENDPOINTS", "UP", "LAST SYNC")
	}
	t := newTable(w, heads...).fit(o.columns, 1)
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
	return []fact{
		{"mode", n.Mode},
		{"state", string(n.Judge().State)},
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

// writeTroubles writes why nodes need attention, which is too long for a column. Nodes of
// the same verdict share a line.
func writeTroubles(w io.Writer, all []NodeAnswer[statusapi.Node]) {
	var verdicts []string // in the order of the first node of each
	nodes := map[string][]string{}
	for _, a := range all {
		if a.Answer == nil || !a.Answer.Troubled() {
			continue
		}
		v := a.Answer.Judge().Text
		if nodes[v] == nil {
			verdicts = append(verdicts, v)
		}
		nodes[v] = append(nodes[v], a.Node)
	}
	if len(verdicts) > 0 {
		fmt.Fprintln(w, "\nNEEDS ATTENTION:")
	}
	for _, v := range verdicts {
		who := nodes[v][0]
		if n := len(nodes[v]); n > 1 {
			who = plural(n, "node", "nodes")
		}
		fmt.Fprintf(w, "  %s: %s\n", Clean(who), Clean(v))
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

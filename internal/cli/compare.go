package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sluice/internal/statusapi"
)

// maxDifferences bounds how many differences of a node are listed, so that they fit
// in a line.
const maxDifferences = 3

// fact is one property in a daemon's answer.
type fact struct{ name, value string }

// nodeFacts are the facts in the answer of a node's daemon. Nodes with equal facts
// agree.
type nodeFacts struct {
	node  string
	facts []fact
}

// factsOf returns the facts of all nodes whose daemon answered. An error of the
// daemon itself, for example that there is no such Service, counts as an answer.
func factsOf[T any](all []NodeAnswer[T], facts func(*T) []fact) []nodeFacts {
	var out []nodeFacts
	for _, a := range all {
		switch {
		case a.Answer != nil:
			out = append(out, nodeFacts{a.Node, facts(a.Answer)})
		case a.FromDaemon:
			out = append(out, nodeFacts{a.Node, []fact{{"", a.Error}}})
		}
	}
	return out
}

func values(facts []fact) []string {
	var out []string
	for _, f := range facts {
		out = append(out, f.value)
	}
	return out
}

// majority returns the most common facts; of those that are equally common, the
// first.
func majority(all []nodeFacts) []fact {
	var best []fact
	most := 0
	seen := map[string]bool{}
	for _, n := range all {
		key := fmt.Sprintf("%q", n.facts)
		if seen[key] {
			continue
		}
		seen[key] = true
		if count := countOf(all, n.facts); count > most {
			best, most = n.facts, count
		}
	}
	return best
}

// countOf returns how many nodes have the same facts.
func countOf(all []nodeFacts, facts []fact) (count int) {
	for _, n := range all {
		if slices.Equal(n.facts, facts) {
			count++
		}
	}
	return count
}

// differences returns in a line which facts of a node differ from the common ones.
func differences(own, common []fact) string {
	var words []string
	for _, f := range own {
		if !slices.Contains(common, f) {
			words = append(words, f.text())
		}
	}
	for _, f := range common {
		if !slices.ContainsFunc(own, func(o fact) bool { return o.name == f.name }) {
			words = append(words, fact{f.name, "not there"}.text())
		}
	}
	if more := len(words) - maxDifferences; more > 0 {
		words = append(words[:maxDifferences], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, "; ")
}

func (f fact) text() string {
	if f.name == "" {
		return f.value
	}
	return f.name + ": " + f.value
}

// writeCompared writes the answer that most nodes agree on once, as one of them gave
// it, and a line for each node that differs or did not answer.
func writeCompared[T any](w io.Writer, all []NodeAnswer[T], facts func(*T) []fact, show func(*T) error) error {
	answers := factsOf(all, facts)
	common := majority(answers)
	i := slices.IndexFunc(answers, func(n nodeFacts) bool { return slices.Equal(n.facts, common) })
	if i < 0 {
		WriteUnanswered(w, all)
		return nil
	}
	agree := countOf(answers, common)
	if agree == len(answers) {
		fmt.Fprintf(w, "%s: the same on %s", Clean(answers[i].node), plural(agree, "node", "nodes"))
	} else {
		fmt.Fprintf(w, "%s: the same on %d of %s", Clean(answers[i].node), agree, plural(len(answers), "node", "nodes"))
	}
	fmt.Fprint(w, "\n\n")
	at := slices.IndexFunc(all, func(a NodeAnswer[T]) bool { return a.Node == answers[i].node })
	if all[at].Answer == nil {
		fmt.Fprintln(w, Clean(all[at].Error))
	} else if err := show(all[at].Answer); err != nil {
		return err
	}
	if agree < len(answers) {
		fmt.Fprintf(w, "\nDIFFERENT ON %s:\n", strings.ToUpper(plural(len(answers)-agree, "node", "nodes")))
	}
	for _, n := range answers {
		if !slices.Equal(n.facts, common) {
			fmt.Fprintf(w, "  %s: %s\n", Clean(n.node), Clean(differences(n.facts, common)))
		}
	}
	WriteUnanswered(w, all)
	return nil
}

// CompareServices writes what the daemons of many nodes know about Services, of one
// namespace or named ones, and where they differ.
func CompareServices(w io.Writer, all []NodeAnswer[StatusReport], o StatusOptions) error {
	switch o.Output {
	case "json", "yaml":
		return encode(w, o.Output, NodeList[StatusReport]{all})
	}
	o.fitTerminal(w)
	return writeFitted(w, o.columns, func(w io.Writer) error {
		return writeCompared(w, all, serviceFacts, func(r *StatusReport) error { return writeSome(w, r, o) })
	})
}

// writeSome writes what one node knows about some Services.
func writeSome(w io.Writer, r *StatusReport, o StatusOptions) error {
	switch {
	case len(r.Details) > 0:
		return writeDetails(w, r, o)
	case r.problemCount == 0 && len(r.Services) == 0 && o.Problems:
		_, err := fmt.Fprintf(w, "Nothing needs attention in namespace %s.\n", Clean(o.Namespace))
		return err
	case r.problemCount == 0 && len(r.Services) == 0:
		_, err := fmt.Fprintf(w, "No Service of namespace %s is served here.\n", Clean(o.Namespace))
		return err
	}
	writeProblems(w, r)
	return writeServices(w, r, o)
}

// serviceFacts returns what should be the same on all nodes. Which endpoints are
// local, times and traffic differ between nodes.
func serviceFacts(r *StatusReport) []fact {
	var out []fact
	if len(r.Details) == 0 {
		for i := range r.Services {
			s := &r.Services[i]
			out = append(out, fact{s.Namespace + "/" + s.Name, stateWord(s)})
		}
		for _, p := range r.Problems {
			out = append(out, fact{p.Object + " " + p.Field, p.Reason})
		}
	}
	for _, s := range r.Details {
		name := s.Namespace + "/" + s.Name
		for _, p := range s.Rows {
			port := fmt.Sprintf("%s %s %s", cmp.Or(p.Name, name), p.Protocol, p.Family)
			state := string(p.Status.State)
			if p.Status.Reason != "" {
				state += ", " + p.Status.Reason
			}
			out = append(out, fact{port, state}, fact{port + " endpoints", thousands(p.Total)})
			for _, f := range p.Frontends {
				if f.Kind != "NodePort" { // NodePorts are at the addresses of each node.
					out = append(out, fact{f.Kind + " " + f.Address, cmp.Or(f.LostTo, "has it")})
				}
			}
			for _, e := range p.Endpoints {
				value := "used"
				if !e.Used {
					value = "not used, " + cmp.Or(e.Reason, "except locally")
				}
				out = append(out, fact{port + " endpoint " + e.Address, value})
			}
		}
		for _, p := range s.Found {
			out = append(out, fact{p.Object + " " + p.Field, p.Reason})
		}
	}
	slices.SortFunc(out, func(a, b fact) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.value, b.value)) })
	return out
}

// CompareExplanations writes what happens to a packet on many nodes, and where they
// differ.
func CompareExplanations(w io.Writer, all []NodeAnswer[statusapi.Explanation], format string, now time.Time) error {
	if format != "text" {
		return encode(w, format, NodeList[statusapi.Explanation]{all})
	}
	return writeAll(w, func(w io.Writer) error {
		return writeCompared(w, all, explanationFacts, func(e *statusapi.Explanation) error {
			err := Explain(w, format, e, now)
			if some := len(e.Candidates); some < e.CandidateCount {
				fmt.Fprintf(w, "\nCompared: the first %s of %s endpoints, by address\n", thousands(some), thousands(e.CandidateCount))
			}
			return err
		})
	})
}

// explanationFacts returns what should be the same on all nodes.
func explanationFacts(e *statusapi.Explanation) []fact {
	out := []fact{{"", e.Verdict + " (" + string(e.Reason) + ")"}}
	if e.Service != nil {
		out = append(out, fact{"Service", strings.TrimSuffix(e.Service.Namespace+"/"+e.Service.Name+":"+e.Service.Port, ":")})
	}
	if e.CandidateCount > 0 {
		var to []string
		for _, c := range e.Candidates {
			to = append(to, c.Address)
		}
		slices.Sort(to)
		text := strings.Join(to, " ")
		if e.CandidateCount > len(to) {
			text = fmt.Sprintf("%s, first %s", plural(e.CandidateCount, "endpoint", "endpoints"), text)
		}
		out = append(out, fact{"goes to", text})
	}
	if e.Kernel.State == statusapi.KernelDiffers || e.Kernel.State == statusapi.KernelFailed {
		out = append(out, fact{"kernel", string(e.Kernel.State)})
	}
	return out
}

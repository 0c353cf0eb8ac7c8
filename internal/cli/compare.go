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

// differencesShown is how many of a node's are, so that it keeps to a line.
const differencesShown = 3

// fact is one thing that a daemon says.
type fact struct{ what, value string }

// opinion is what the daemon of a node says. Those with the same facts agree.
type opinion struct {
	node  string
	facts []fact
}

// opinions returns what was answered; that there is no such thing is an answer.
func opinions[T any](all []NodeAnswer[T], facts func(*T) []fact) []opinion {
	var out []opinion
	for _, a := range all {
		switch {
		case a.Answer != nil:
			out = append(out, opinion{a.Node, facts(a.Answer)})
		case a.Said:
			out = append(out, opinion{a.Node, []fact{{"", a.Error}}})
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

// majority returns the facts that most share; of those that are as common, the
// first.
func majority(all []opinion) []fact {
	var best []fact
	most := 0
	seen := map[string]bool{}
	for _, o := range all {
		key := fmt.Sprintf("%q", o.facts)
		if seen[key] {
			continue
		}
		seen[key] = true
		if n := countOf(all, o.facts); n > most {
			best, most = o.facts, n
		}
	}
	return best
}

// countOf returns how many have the same facts.
func countOf(all []opinion, facts []fact) (n int) {
	for _, o := range all {
		if slices.Equal(o.facts, facts) {
			n++
		}
	}
	return n
}

// differences says in a line what one has otherwise than most.
func differences(own, common []fact) string {
	var words []string
	for _, f := range own {
		if !slices.Contains(common, f) {
			words = append(words, f.text())
		}
	}
	for _, f := range common {
		if !slices.ContainsFunc(own, func(o fact) bool { return o.what == f.what }) {
			words = append(words, fact{f.what, "not there"}.text())
		}
	}
	if more := len(words) - differencesShown; more > 0 {
		words = append(words[:differencesShown], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, "; ")
}

func (f fact) text() string {
	if f.what == "" {
		return f.value
	}
	return f.what + ": " + f.value
}

// writeCompared shows once what most nodes say, by one of them, and a line for
// each that differs or did not answer. It is an error if no node knows anything.
func writeCompared[T any](w io.Writer, all []NodeAnswer[T], facts func(*T) []fact, show func(*T) error) error {
	answers := opinions(all, facts)
	common := majority(answers)
	i := slices.IndexFunc(answers, func(o opinion) bool { return slices.Equal(o.facts, common) })
	if i < 0 {
		WriteSilent(w, all)
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
	for _, o := range answers {
		if !slices.Equal(o.facts, common) {
			fmt.Fprintf(w, "  %s: %s\n", Clean(o.node), Clean(differences(o.facts, common)))
		}
	}
	WriteSilent(w, all)
	return nil
}

// CompareServices shows what the daemons of many nodes know of the Services that
// were asked for.
func CompareServices(w io.Writer, all []NodeAnswer[StatusReport], o StatusOptions) error {
	switch o.Output {
	case "json", "yaml":
		return encode(w, o.Output, NodeList[StatusReport]{all})
	}
	return writeAll(w, func(w io.Writer) error {
		return writeCompared(w, all, serviceFacts, func(r *StatusReport) error { return writeDetails(w, r) })
	})
}

// serviceFacts are what all nodes should say alike of Services: what is local,
// since when, and the traffic are each node's own.
func serviceFacts(r *StatusReport) []fact {
	var out []fact
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
				if f.Kind != "NodePort" { // each node's own
					out = append(out, fact{f.Kind + " " + f.Address, cmp.Or(f.LostTo, "has it")})
				}
			}
			for _, e := range p.Endpoints {
				value := "used"
				if !e.Used {
					value = "not used, " + cmp.Or(e.Reason, "but locally")
				}
				out = append(out, fact{port + " endpoint " + e.Address, value})
			}
		}
		for _, p := range s.Found {
			out = append(out, fact{p.Object + " " + p.Field, p.Reason})
		}
	}
	slices.SortFunc(out, func(a, b fact) int { return cmp.Or(cmp.Compare(a.what, b.what), cmp.Compare(a.value, b.value)) })
	return out
}

// CompareExplanations shows how a packet fares on many nodes.
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

// explanationFacts are those by which it shows that a packet fares otherwise.
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

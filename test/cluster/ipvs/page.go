package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"sluice/test/cluster/peers/figures"
)

// what is one figure of a result; ok is false if there is none.
type what struct {
	name   string
	target float64 // so many times better; 0: none is promised
	of     func(r *figures.Result) (value figures.Seconds, ok bool)
}

var table = []what{
	{"cold start until each of a hundred Services answers that were chosen at random", 5, func(r *figures.Result) (figures.Seconds, bool) {
		if r.ColdStart == nil || r.ColdStart.Answered < r.ColdStart.Of {
			return 0, false
		}
		return r.ColdStart.Most, true
	}},
	{"cold start until every Service has been asked and has answered", 5, func(r *figures.Result) (figures.Seconds, bool) {
		if r.ColdStart == nil || r.ColdStart.Answered < r.ColdStart.Of {
			return 0, false
		}
		return r.ColdStart.Every, true
	}},
	{"of it until the first Service answers: the API, and what is written by then", 0, func(r *figures.Result) (figures.Seconds, bool) {
		if r.ColdStart == nil {
			return 0, false
		}
		return r.ColdStart.First, r.ColdStart.First > 0
	}},
	{"endpoint change to traffic, p50, from the API server's answer", 10, func(r *figures.Result) (figures.Seconds, bool) {
		c := r.Change(0)
		if c == nil || len(c.Samples) == 0 {
			return 0, false
		}
		return figures.Percentile(c.Samples, 50), true
	}},
	{"CPU time until then, from the start", 0, func(r *figures.Result) (figures.Seconds, bool) {
		if r.ColdStart == nil {
			return 0, false
		}
		return r.ColdStart.CPU, true
	}},
	{"CPU time per change", 0, func(r *figures.Result) (figures.Seconds, bool) {
		c := r.Change(0)
		if c == nil {
			return 0, false
		}
		return c.PerUpdate(), true
	}},
}

const head = `# Mode ipvs beside kube-proxy's

` + "`make bench-ipvs`" + ` boots a kernel in a virtual machine without hardware support (%s, %s), so that times are longer than on a
machine; what counts are the ratios. The API server is in memory. The proxies have their turns one after the other, each on a
fresh node; what is shown are the medians of %d rounds, and of all values the least and the largest. A hundred Services are
asked until they answer, and then all the others, which takes time of its own on the processors that the proxy works with.

| Services x endpoints | what | sluice | kube-proxy | ratio | target | holds |
|--:|---|--:|--:|--:|--:|--:|
`

// render returns the page.
func render(all []sized) string {
	var b strings.Builder
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease") // for the record only
	fmt.Fprintf(&b, head, "Linux "+strings.TrimSpace(string(release)), time.Now().UTC().Format("2006-01-02"), *rounds)
	for _, s := range all {
		for _, w := range table {
			fmt.Fprintf(&b, "| %v | %s | %s\n", s.Size, w.name, w.row(s))
		}
	}
	return b.String()
}

// row returns the figures of both peers and how they compare.
func (w what) row(s sized) string {
	ours, theirs := w.median(s.results[0]), w.median(s.results[1])
	out := fmt.Sprintf("%s | %s |", w.span(s.results[0]), w.span(s.results[1]))
	if ours == 0 || theirs == 0 {
		return out + " - | | not measured |"
	}
	ratio := float64(theirs / ours)
	out += fmt.Sprintf(" %.1fx |", ratio)
	switch {
	case w.target == 0:
		return out + " | |"
	case ratio < w.target:
		return out + fmt.Sprintf(" at least %.0fx faster | **no** |", w.target)
	default:
		return out + fmt.Sprintf(" at least %.0fx faster | yes |", w.target)
	}
}

// values are those of all rounds.
func (w what) values(of []figures.Result) (out []figures.Seconds) {
	for i := range of {
		if v, ok := w.of(&of[i]); ok {
			out = append(out, v)
		}
	}
	return out
}

func (w what) median(of []figures.Result) figures.Seconds {
	return figures.Percentile(w.values(of), 50)
}

// span shows the median, the least and the largest, or why there are none.
func (w what) span(of []figures.Result) string {
	v := w.values(of)
	if len(v) == 0 {
		return "none: " + why(of)
	}
	return fmt.Sprintf("%v (%v to %v)", w.median(of), figures.Percentile(v, 0), figures.Percentile(v, 100))
}

// why says what went wrong first.
func why(of []figures.Result) string {
	for _, r := range of {
		for stage, reason := range r.Missing {
			return fmt.Sprintf("%s: %s", stage, reason)
		}
	}
	return "not measured"
}

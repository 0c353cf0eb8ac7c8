package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"sluice/test/cluster/peers/figures"
)

// what is one figure of a result. A value of 0 means none; more means that the true one
// is larger.
type what struct {
	name   string
	target float64 // so many times better; 0: none is promised
	of     func(r *figures.Result) (value figures.Seconds, more bool)
}

var table = []what{
	{"cold start until each of a hundred Services answers that were chosen at random", 5, func(r *figures.Result) (figures.Seconds, bool) {
		if r.ColdStart == nil || r.ColdStart.Answered < r.ColdStart.Of {
			return 0, false
		}
		return r.ColdStart.Most, false
	}},
	{"cold start until every Service has been asked and has answered", 5, func(r *figures.Result) (figures.Seconds, bool) {
		if r.ColdStart == nil || r.ColdStart.Answered < r.ColdStart.Of {
			return 0, false
		}
		return r.ColdStart.Every, false
	}},
	{"of it until the first Service answers: the API, and what is written by then", 0, func(r *figures.Result) (figures.Seconds, bool) {
		if r.ColdStart == nil {
			return 0, false
		}
		return r.ColdStart.First, false
	}},
	{"endpoint change to traffic, p50, from the API server's answer", 10, func(r *figures.Result) (figures.Seconds, bool) {
		c := r.Change(0)
		if c == nil {
			return 0, false
		}
		p50 := c.Percentile(50)
		return figures.Seconds(p50.Value), p50.More
	}},
	{"CPU time until then, from the start", 0, func(r *figures.Result) (figures.Seconds, bool) {
		if r.ColdStart == nil {
			return 0, false
		}
		return r.ColdStart.CPU, false
	}},
	{"CPU time per change", 0, func(r *figures.Result) (figures.Seconds, bool) {
		c := r.Change(0)
		if c == nil {
			return 0, false
		}
		return c.PerUpdate(), c.Waiting > 0 && len(c.Samples) == 0
	}},
}

const head = `# Mode ipvs beside kube-proxy's

` + "`make bench-ipvs`" + ` boots a kernel in a virtual machine without hardware support (%s, %s), so that times are longer than on a
machine; what counts are the ratios. The API server is in memory. The proxies have their turns one after the other, each on a
fresh node; what is shown are the medians of %d rounds, and of all values the least and the largest. A ratio is the median of
those of the rounds, since a machine is not equally fast all the time. A hundred Services are asked until they answer, and then
all the others, which takes time of its own on the processors that the proxy works with.

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
	out := fmt.Sprintf("%s | %s |", w.span(s.results[0]), w.span(s.results[1]))
	ratios, sign := w.ratios(s.results[0], s.results[1])
	if len(ratios) == 0 {
		return out + " - | | not measured |"
	}
	ratio := figures.Percentile(ratios, 50)
	out += fmt.Sprintf(" %s%.1fx |", sign, ratio)
	switch {
	case w.target == 0:
		return out + " | |"
	case ratio < w.target:
		return out + fmt.Sprintf(" at least %.0fx faster | **no** |", w.target)
	default:
		return out + fmt.Sprintf(" at least %.0fx faster | yes |", w.target)
	}
}

// ratios returns how much faster we were in each round that both were measured in.
func (w what) ratios(ours, theirs []figures.Result) (out []float64, sign string) {
	for i := range min(len(ours), len(theirs)) {
		our, late := w.of(&ours[i])
		their, more := w.of(&theirs[i])
		if our == 0 || their == 0 || late {
			continue
		}
		if more {
			sign = "> "
		}
		out = append(out, float64(their/our))
	}
	return out, sign
}

// span shows the median, the least and the largest, or why there are none.
func (w what) span(of []figures.Result) string {
	var values []figures.Seconds
	sign := ""
	for i := range of {
		v, more := w.of(&of[i])
		if v > 0 {
			values = append(values, v)
		}
		if more {
			sign = "> "
		}
	}
	if len(values) == 0 {
		return "none: " + why(of)
	}
	at := func(percent float64) figures.Seconds { return figures.Percentile(values, percent) }
	return fmt.Sprintf("%s%v (%v to %v)", sign, at(50), at(0), at(100))
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

//go:build linux

package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sluice/internal/proxy"
)

// view is one picture of the demo, ready to be drawn.
type view struct {
	title    string
	headline string
	delays   string // what the change took
	services []serviceView
	rate     float64 // requests per second
	requests int
	refused  int
	failed   int
	hint     string
}

// serviceView is one Service in the picture.
type serviceView struct {
	name     string
	what     string
	refused  bool // it has no endpoints
	requests int
	rows     []rowView
}

// rowView is one endpoint of a Service.
type rowView struct {
	addr  string
	share float64 // of the Service's recent requests
	total int
	state state
	note  string
}

// state is how an endpoint stands.
type state uint8

// The states.
const (
	serving state = iota
	arrived
	gone
)

// samples returns the Services with the shares since the last change settled.
func (t *tally) samples() []serviceView {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []serviceView
	for _, s := range t.scores {
		out = append(out, s.view(shares(s.sample)))
	}
	return out
}

// view returns the picture of the moment, with the shares of the last moments.
func (t *tally) view() view {
	t.mu.Lock()
	defer t.mu.Unlock()
	var v view
	counts := map[string]map[netip.AddrPort]int{}
	for _, h := range t.recent {
		if counts[h.service] == nil {
			counts[h.service] = map[netip.AddrPort]int{}
		}
		counts[h.service][h.seen.By]++
	}
	for _, s := range t.scores {
		v.services = append(v.services, s.view(shares(counts[s.name])))
		v.requests += s.requests
		v.refused += s.refused
	}
	v.failed = t.failed
	if n := len(t.recent); n > 1 {
		if span := t.recent[n-1].done.Sub(t.recent[0].done); span > 0 {
			v.rate = float64(n) / span.Seconds()
		}
	}
	return v
}

// shares divides counts by their sum.
func shares(counts map[netip.AddrPort]int) map[netip.AddrPort]float64 {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	out := map[netip.AddrPort]float64{}
	for e, n := range counts {
		out[e] = float64(n) / float64(sum)
	}
	return out
}

func (s *score) view(share map[netip.AddrPort]float64) serviceView {
	v := serviceView{
		name: s.name, refused: len(s.endpoints) == 0, requests: s.requests,
		what: fmt.Sprintf("%s %v, from %s", s.kind, s.addr, places(s.clients)),
	}
	if s.local {
		v.what += "; Local: client address kept"
	}
	for _, e := range s.known() {
		r := rowView{addr: e.String(), share: share[e], total: s.totals[e]}
		r.state, r.note = s.standing(e)
		v.rows = append(v.rows, r)
	}
	return v
}

// standing says how an endpoint stands, and since when.
func (s *score) standing(e netip.AddrPort) (state, string) {
	m := s.moves[e]
	switch {
	case m == nil:
		for _, current := range s.endpoints {
			if current == e {
				return serving, ""
			}
		}
		return gone, "gone"
	case m.leaves && s.streak < calm:
		return gone, "leaving ..."
	case m.leaves:
		return gone, "gone " + delay(m.after)
	case m.seen:
		return arrived, "here " + delay(m.after)
	default:
		return arrived, "coming ..."
	}
}

// places says where requests come from.
func places(from []proxy.Origin) string {
	var words []string
	for _, o := range from {
		switch o {
		case proxy.OurPod:
			words = append(words, "pod")
		case proxy.ThisNode:
			words = append(words, "node")
		case proxy.Elsewhere:
			words = append(words, "outside")
		default:
			panic(fmt.Sprintf("unknown origin %d", uint8(o)))
		}
	}
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return strings.Join(words, "")
}

// thousands returns a number with commas.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// words say what a change took, from the moment the manifests changed.
func (d delays) words() []string {
	var parts []string
	for _, a := range sortedAddrs(d.gone) {
		parts = append(parts, fmt.Sprintf("last request to %v %s", a, delay(d.gone[a])))
	}
	for _, a := range sortedAddrs(d.come) {
		parts = append(parts, fmt.Sprintf("first to %v %s", a, delay(d.come[a])))
	}
	return parts
}

// delay says how long something took, if it took any time.
func delay(d time.Duration) string {
	if d <= 0 {
		return "at once"
	}
	return "after " + brief(d)
}

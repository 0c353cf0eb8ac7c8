package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice/internal/conformance/traffic"
	"sluice/internal/proxy"
)

// Expect is what must happen to a packet: a verdict and, for Forward, the
// endpoints that all must be seen and whether each of them sees the client.
type Expect struct {
	Verdict proxy.Verdict
	To      map[netip.AddrPort]bool // endpoint: is the client's address hidden from it
}

func (e *Expect) add(to netip.AddrPort, masquerade bool) {
	if e.To == nil {
		e.To = map[netip.AddrPort]bool{}
	}
	e.To[to] = masquerade
}

// verdicts are the words for what is not forwarded. Whether a firewall accepts
// a packet by a rule of its own cannot be seen.
var verdicts = map[string]proxy.Verdict{
	"reject": proxy.Reject, "drop": proxy.Drop, "untouched": proxy.Untouched, "accept": proxy.Untouched,
}

// UnmarshalJSON reads a word or {to: [...], masq: ...}.
func (e *Expect) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil {
		v, ok := verdicts[word]
		if !ok {
			return fmt.Errorf("expect is %q", word)
		}
		*e = Expect{Verdict: v}
		return nil
	}
	var f struct {
		To           []netip.AddrPort        `json:"to"`
		Masq         *bool                   `json:"masq"`
		MasqWhenToIs map[netip.AddrPort]bool `json:"masq_when_to_is"`
	}
	if err := unmarshalStrict(b, &f); err != nil {
		return fmt.Errorf("expect: %w", err)
	}
	if len(f.To) == 0 {
		return errors.New("expect has no endpoint in to")
	}
	*e = Expect{Verdict: proxy.Forward}
	for _, to := range f.To {
		masq, each := f.MasqWhenToIs[to]
		if each == (f.Masq != nil) {
			return fmt.Errorf("expect must say masq for %v, once", to)
		}
		e.add(to, masq || f.Masq != nil && *f.Masq)
	}
	return nil
}

// String returns the expectation in one line.
func (e Expect) String() string {
	if e.Verdict != proxy.Forward {
		return e.Verdict.String()
	}
	var to []string
	for _, a := range slices.SortedFunc(maps.Keys(e.To), netip.AddrPort.Compare) {
		text := a.String()
		if e.To[a] {
			text += " (masqueraded)"
		}
		to = append(to, text)
	}
	return "to " + strings.Join(to, ", ")
}

func (e Expect) equal(o Expect) bool { return e.Verdict == o.Verdict && maps.Equal(e.To, o.To) }

// judge checks one observation of a case. hidden tells whether a client's
// address could be seen to be hidden from an endpoint.
func (e Expect) judge(c *Case, s traffic.Seen, hidden func(netip.AddrPort) bool) error {
	ok, want := false, ""
	switch e.Verdict {
	case proxy.Forward:
		return e.judgeAnswer(c, s, hidden)
	case proxy.Reject:
		ok, want = s.Fate == traffic.Refused, "a refusal"
	case proxy.Drop:
		ok, want = s.Fate == traffic.Silent, "silence"
	case proxy.Untouched:
		ok = s.Fate == traffic.Answered && s.Answer == traffic.Answer{By: c.to(), Client: c.Src}
		want = "the answer of its own destination"
	}
	if !ok {
		return fmt.Errorf("%v, instead of %s", s, want)
	}
	return nil
}

func (e Expect) judgeAnswer(c *Case, s traffic.Seen, hidden func(netip.AddrPort) bool) error {
	masq, known := e.To[s.By]
	switch {
	case s.Fate != traffic.Answered:
		return fmt.Errorf("%v, instead of an answer", s)
	case !known:
		return fmt.Errorf("%v, which is no endpoint of it", s)
	case !hidden(s.By):
		return nil
	case masq && s.Client == c.Src:
		return fmt.Errorf("%v, though the client should be masqueraded", s)
	case !masq && s.Client != c.Src:
		return fmt.Errorf("%v, though the client is %v", s, c.Src)
	}
	return nil
}

// missing returns the endpoints that have not answered yet.
func (e Expect) missing(seen map[netip.AddrPort]bool) []netip.AddrPort {
	var out []netip.AddrPort
	for a := range e.To {
		if !seen[a] {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

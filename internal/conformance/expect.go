package conformance

import (
	"bytes"
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

// forward is the written form of an expectation to be forwarded.
type forward struct {
	To           []netip.AddrPort        `json:"to"`
	Masq         *bool                   `json:"masq"`
	MasqWhenToIs map[netip.AddrPort]bool `json:"masq_when_to_is"`
}

// UnmarshalJSON reads a word or {to: [...], masq: ...}.
func (e *Expect) UnmarshalJSON(b []byte) error {
	var word string
	if json.Unmarshal(b, &word) == nil {
		return e.word(word)
	}
	var f forward
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return fmt.Errorf("expect: %w", err)
	}
	if len(f.To) == 0 {
		return errors.New("expect has no endpoint in to")
	}
	e.Verdict, e.To = proxy.Forward, map[netip.AddrPort]bool{}
	for _, to := range f.To {
		masq, each := f.MasqWhenToIs[to]
		switch {
		case each == (f.Masq != nil):
			return fmt.Errorf("expect must say masq for %v, once", to)
		case f.Masq != nil:
			masq = *f.Masq
		}
		e.To[to] = masq
	}
	return nil
}

func (e *Expect) word(word string) error {
	switch word {
	case "reject":
		e.Verdict = proxy.Reject
	case "drop":
		e.Verdict = proxy.Drop
	case "untouched", "accept": // whether a firewall accepts it by a rule of its own is not visible
		e.Verdict = proxy.Untouched
	default:
		return fmt.Errorf("expect is %q", word)
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

// expectation is an oracle's answer in the table's form.
func expectation(o proxy.Outcome) Expect {
	e := Expect{Verdict: o.Verdict}
	if o.Verdict == proxy.Forward {
		e.To = map[netip.AddrPort]bool{}
		for _, b := range o.Backends {
			e.To[b.Addr] = b.Masquerade
		}
	}
	return e
}

// equal compares two expectations.
func (e Expect) equal(o Expect) bool { return e.Verdict == o.Verdict && maps.Equal(e.To, o.To) }

// judge checks one observation of a case. hidden tells whether a client's
// address could be seen to be hidden from an endpoint.
func (e Expect) judge(c *Case, s traffic.Seen, hidden func(netip.AddrPort) bool) error {
	want := ""
	switch e.Verdict {
	case proxy.Forward:
		return e.judgeAnswer(c, s, hidden)
	case proxy.Reject:
		if s.Fate == traffic.Refused {
			return nil
		}
		want = "a refusal"
	case proxy.Drop:
		if s.Fate == traffic.Silent {
			return nil
		}
		want = "silence"
	case proxy.Untouched:
		if s.Fate == traffic.Answered && s.By == c.to() && s.Client == c.Src {
			return nil
		}
		want = "the answer of its own destination"
	}
	return fmt.Errorf("%v, instead of %s", s, want)
}

func (e Expect) judgeAnswer(c *Case, s traffic.Seen, hidden func(netip.AddrPort) bool) error {
	if s.Fate != traffic.Answered {
		return fmt.Errorf("%v, instead of an answer", s)
	}
	masq, known := e.To[s.By]
	switch {
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

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

// Expect is the expected result of a packet: a verdict and, for Forward, the endpoints. Each
// endpoint must be reached at least once.
type Expect struct {
	Verdict proxy.Verdict
	To      map[netip.AddrPort]bool // by endpoint: is the client masqueraded
}

// verdicts maps the words for packets that are not forwarded. Whether a firewall explicitly accepts
// a packet cannot be observed, so accept equals untouched.
var verdicts = map[string]proxy.Verdict{
	"reject": proxy.Reject, "drop": proxy.Drop, "untouched": proxy.Untouched, "accept": proxy.Untouched,
}

// UnmarshalJSON reads a verdict or {to: [...], masq: ...}.
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
	if err := decodeStrict(b, &f); err != nil {
		return fmt.Errorf("expect: %w", err)
	}
	if len(f.To) == 0 {
		return errors.New("expect has no endpoint in to")
	}
	*e = Expect{proxy.Forward, map[netip.AddrPort]bool{}}
	for _, to := range f.To {
		masq, each := f.MasqWhenToIs[to]
		if each == (f.Masq != nil) {
			return fmt.Errorf("expect must say masq for %v, once", to)
		}
		e.To[to] = masq || f.Masq != nil && *f.Masq
	}
	return nil
}

func (e Expect) String() string {
	if e.Verdict != proxy.Forward {
		return e.Verdict.String()
	}
	var to []string
	for _, a := range e.sorted() {
		text := a.String()
		if e.To[a] {
			text += " (masqueraded)"
		}
		to = append(to, text)
	}
	return "to " + strings.Join(to, ", ")
}

func (e Expect) equal(o Expect) bool { return e.Verdict == o.Verdict && maps.Equal(e.To, o.To) }

// check compares one observation with the expectation. visible says whether the endpoint could see
// that the client is masqueraded.
func (e Expect) check(c *Case, s traffic.Seen, visible bool) error {
	masq, known := e.To[s.By]
	want := ""
	switch answered := s.Fate == traffic.Answered; {
	case e.Verdict == proxy.Reject && s.Fate != traffic.Refused:
		want = "an ICMP rejection"
	case e.Verdict == proxy.Drop && s.Fate != traffic.Silent:
		want = "silence"
	case e.Verdict == proxy.Untouched && (!answered || s.Answer != traffic.Answer{By: c.to(), Client: c.Src}):
		want = "an answer of the original destination"
	case e.Verdict != proxy.Forward:
		return nil
	case !answered || !known:
		want = "an answer of an expected endpoint"
	case visible && masq && s.Client == c.Src:
		want = "a masqueraded client"
	case visible && !masq && s.Client != c.Src:
		want = fmt.Sprintf("the client %v", c.Src)
	default:
		return nil
	}
	return fmt.Errorf("got %v, want %s", s, want)
}

// missing returns the endpoints that have not answered yet.
func (e Expect) missing(answers []netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(e.sorted(), func(a netip.AddrPort) bool { return slices.Contains(answers, a) })
}

func (e Expect) sorted() []netip.AddrPort {
	return slices.SortedFunc(maps.Keys(e.To), netip.AddrPort.Compare)
}

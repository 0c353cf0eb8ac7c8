package conformance

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"sluice/internal/proxy"
)

// Story is a list of steps: what one packet does to the next.
type Story struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	World
	Steps []*Step `json:"steps"`
}

// Step is one thing that happens.
type Step struct {
	Do string `json:"do"` // connect, wait, remove_endpoint, change, resync, reopen

	// connect: each client opens one connection after another.
	From     Place        `json:"from"`
	Src      []netip.Addr `json:"src"`     // if it is not said, the table's client at that place
	Clients  int          `json:"clients"` // or that many clients outside
	Dst      netip.Addr   `json:"dst"`
	DPort    uint16       `json:"dport"`
	Proto    v1.Protocol  `json:"proto"`
	Times    int          `json:"times"`
	Every    float64      `json:"every"`    // seconds between two connections
	Assert   []string     `json:"assert"`   // one_backend, all_backends, even, or same_as, never_as, moved_from and a name
	Remember string       `json:"remember"` // under which name

	Seconds float64 `json:"seconds"` // wait
	Which   string  `json:"which"`   // remove_endpoint: the backend that was remembered
	Change  Phase   `json:"change"`  // change
}

// assertions are the words of Step.Assert, and whether a remembered name follows.
var assertions = map[string]bool{
	"one_backend": false, "all_backends": false, "even": false, "same_as": true, "never_as": true, "moved_from": true,
}

func (s *Story) complete() error {
	var changes []Phase
	for i, st := range s.Steps {
		if err := st.complete(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		changes = append(changes, st.Change)
	}
	return s.World.complete(changes...)
}

func (st *Step) complete() error {
	switch st.Do {
	case "wait", "remove_endpoint", "change", "resync", "reopen":
		return nil
	case "connect":
	default:
		return fmt.Errorf("do is %q", st.Do)
	}
	first := [...]string{proxy.IPv4: "203.0.113.10", proxy.IPv6: "2600:5200::10"}[proxy.FamilyOf(st.Dst)]
	for a := netip.MustParseAddr(first); len(st.Src) < st.Clients; a = a.Next() {
		st.From, st.Src = FromOutside, append(st.Src, a)
	}
	for _, a := range st.Assert {
		word, name, _ := strings.Cut(a, " ")
		if named, known := assertions[word]; !known || named != (name != "") {
			return fmt.Errorf("assert is %q", a)
		}
	}
	if st.Src == nil {
		st.Src = make([]netip.Addr, 1)
	}
	for i, c := range st.cases() {
		if err := c.address(); err != nil {
			return err
		}
		st.Src[i] = c.Src
	}
	return nil
}

// cases returns the step's connections as cases, one per client.
func (st *Step) cases() []*Case {
	var out []*Case
	for _, src := range st.Src {
		out = append(out, &Case{From: st.From, Src: src, Dst: st.Dst, DPort: st.DPort, Proto: st.Proto})
	}
	return out
}

package proxy

import (
	"fmt"
	"slices"
	"strings"
)

// Balancing is the method by which an endpoint is chosen for a new connection.
type Balancing uint8

// The load-balancing methods. A mode may support only some of them.
const (
	BalanceDefault   Balancing = iota // the mode's own default
	Random                            // each endpoint with the same probability
	RoundRobin                        // one after the other
	LeastConnections                  // the endpoint with the fewest open connections
	SourceHash                        // by a hash of the client's address
	Maglev                            // by consistent hashing of the client's address: a changed endpoint moves few other clients
)

// Balancings lists the methods that users can select.
var Balancings = [...]Balancing{Random, RoundRobin, LeastConnections, SourceHash, Maglev}

var balancingNames = [...]string{"default", "random", "round-robin", "least-connections", "source-hash", "maglev"}

// String returns the method as users write it, or "default", which users cannot write.
func (b Balancing) String() string { return balancingNames[b] }

// ParseBalancing parses a method as users write it. The error begins with the text.
func ParseBalancing(text string) (Balancing, error) {
	if i := slices.Index(balancingNames[:], text); i > int(BalanceDefault) {
		return Balancing(i), nil
	}
	return BalanceDefault, fmt.Errorf("%.60q is not %s", text, BalancingWords(Balancings[:]))
}

// BalancingWords returns methods as a list in English, like "random or maglev".
func BalancingWords(methods []Balancing) string {
	var words []string
	for _, b := range methods {
		words = append(words, b.String())
	}
	last := max(0, len(words)-2) // where the last two begin
	return strings.Join(append(words[:last], strings.Join(words[last:], " or ")), ", ")
}

package proxy

import (
	"fmt"
	"slices"
	"strings"
)

// Balancing is how an endpoint is chosen for a new connection.
type Balancing uint8

// The ways to choose. No mode has to know all of them.
const (
	BalanceDefault   Balancing = iota // what the mode does by itself
	Random                            // any of them, with the same chance
	RoundRobin                        // one after the other
	LeastConnections                  // the one with the fewest open connections
	SourceHash                        // by the client's address
	Maglev                            // by the client's address; a change of the endpoints moves few other clients
)

// Balancings lists what operators can ask for.
var Balancings = [...]Balancing{Random, RoundRobin, LeastConnections, SourceHash, Maglev}

var balancingNames = [...]string{"default", "random", "round-robin", "least-connections", "source-hash", "maglev"}

// String returns the way as operators spell it, of which "default" is none.
func (b Balancing) String() string { return balancingNames[b] }

// ParseBalancing reads a way as operators spell it. The error begins with what
// was read.
func ParseBalancing(text string) (Balancing, error) {
	if i := slices.Index(balancingNames[:], text); i > int(BalanceDefault) {
		return Balancing(i), nil
	}
	return BalanceDefault, fmt.Errorf("%.60q is not %s", text, BalancingWords(Balancings[:]))
}

// BalancingWords returns a choice of ways, like "random or maglev".
func BalancingWords(ways []Balancing) string {
	var words []string
	for _, b := range ways {
		words = append(words, b.String())
	}
	last := max(0, len(words)-2) // where the last two begin
	return strings.Join(append(words[:last], strings.Join(words[last:], " or ")), ", ")
}

package iptables

import (
	"cmp"
	"math"
	"slices"

	"sluice/internal/dataplane/differ"
	"sluice/internal/kernel/ipt"
	"sluice/internal/proxy"
)

// chainRef names a chain.
type chainRef struct {
	table, chain string
}

func compareChainRefs(a, b chainRef) int {
	return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.chain, b.chain))
}

// id names what is in the tables of a family: a chain of ours, a rule in a chain
// that rows share, or what we have in a built-in chain.
type id struct {
	f *family
	chainRef
	rule string // in a chain that rows share; empty: it is a chain
}

// value is what a chain is like. A rule is what its name says.
type value struct {
	// rules are all rules of a chain; of one that rows share the constant ones,
	// of a built-in one those that lead to us.
	rules []string

	row     *proxy.PortKey // the row whose chain or rule it is; nil: none
	foreign bool           // of a chain that rows share: what rules has is all of its rules, and not as it should be
	used    bool           // rules of others go to the chain
}

type (
	changes = differ.Changes[id, value]
	change  = differ.Change[id, value]
)

// all returns the rules that an object is.
func (x id) all(v value) []string {
	if x.rule != "" {
		return []string{x.rule}
	}
	return v.rules
}

// builtIn reports whether a chain is not ours.
func (c chainRef) builtIn() bool { return !owns(c.table, c.chain) }

// shared reports whether rows share a chain.
func (c chainRef) shared() bool { return slices.Contains(sharedChains, c) }

func same(a, b value) bool { return a.foreign == b.foreign && slices.Equal(a.rules, b.rules) }

// Ranks of changes. A chain is written before what goes to it, and removed after
// that: what has rank r when it comes has rankGone-r when it goes.
const (
	rankLive = 10 // the rules that rows share, and what leads to us
	rankGone = 10 * rankLive
)

func order(_ *changes, c *change) differ.Order {
	rank := c.ID.rank()
	switch {
	case !c.Has && c.ID.rule == "" && !c.ID.builtIn():
		return differ.Order{Rank: rankGone - rank}
	case rank == rankLive:
		return differ.Order{Rank: rank, Group: "live"}
	default:
		return differ.Order{Rank: rank}
	}
}

// rank tells which chains go to which.
func (x id) rank() int {
	switch {
	case x.builtIn() || x.shared():
		return rankLive
	case x.chain == kubeMark:
		return 0
	case x.chain == kubeMarkOther:
		return 1
	default:
		return 2 + rowChainKind(x.chain) // 1 if it is no row's
	}
}

// size counts chains.
func size(c *change) int {
	if c.ID.rank() == rankLive {
		return 0
	}
	return 1
}

// maxChains is how many chains one restore of the nft variant makes or removes.
// Its programs keep the chains they deal with in one sorted list, which they
// walk for every line: a restore costs the product of its lines and its chains.
// In parts, 2,000 Services of ten endpoints take 1.5 s and not 8.6 s. With the
// legacy variant every restore reads and writes the whole table, so there is one.
func maxChains(v ipt.Variant) int {
	if v == ipt.Legacy {
		return math.MaxInt
	}
	return 600
}
